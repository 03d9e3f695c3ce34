"""Probes: ssh keys and agent."""

from __future__ import annotations

import shlex
import socket
import stat
import struct
from typing import TYPE_CHECKING

from ..fs.files import read_text
from .probe import Findings, Probes, observation

if TYPE_CHECKING:
    from pathlib import Path

    from .machine import Machine

PRIVATE_KEY = "PRIVATE KEY"
AGENT_S = 1.0
# The agent protocol: SSH_AGENTC_REQUEST_IDENTITIES.
REQUEST_IDENTITIES = 11
WRITABLE_FOR_ANYBODY = stat.S_IWGRP | stat.S_IWOTH
OPEN_FOR_ANYBODY = stat.S_IRWXG | stat.S_IRWXO


def keys(machine: Machine) -> Findings:
    """What ssh and sshd (StrictModes) refuse: keys that others may read, and a home, folder or
    authorized_keys that others may write."""
    folder = f"{machine.home}/.ssh"
    if not machine.path(folder).is_dir():
        return
    rows = [
        (path, WRITABLE_FOR_ANYBODY, "chmod go-w", f"others may write {path}")
        for path in (machine.home, folder, f"{folder}/authorized_keys")
    ]
    for file in machine.glob(folder, "*"):
        path = machine.name(file)
        if file.is_file() and PRIVATE_KEY in read_text(file)[:100].partition("\n")[0]:
            message = f"others may use the private key {path}"
            rows.append((path, OPEN_FOR_ANYBODY, "chmod 600", message))
    for path, refused, command, message in rows:
        mode = _mode(machine.path(path))
        if mode & refused:
            yield observation(
                "ssh-key-open",
                message,
                f"mode of {path}",
                oct(mode),
                f"{command} {shlex.quote(path)}",
            )


def _mode(path: Path) -> int:
    """0 if it cannot be read."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return 0


def agent(machine: Machine) -> Findings:
    if not (path := machine.variable("SSH_AUTH_SOCK")) or not machine.is_real:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(AGENT_S)
        try:
            connection.connect(path)
            connection.sendall(struct.pack(">IB", 1, REQUEST_IDENTITIES))
            reply = connection.recv(5)
        except OSError as error:
            reason = error.strerror or str(error)
        else:
            reason = "" if len(reply) == 5 else "it closed the connection"
    if reason:
        yield observation(
            "ssh-agent-dead",
            f"the agent at {path} does not respond: {reason}",
            "variable SSH_AUTH_SOCK",
            path,
        )


PROBES: Probes = {
    "ssh keys": keys,
    "ssh agent": agent,
}
