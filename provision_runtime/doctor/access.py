"""Probes: ssh keys and agent."""

from __future__ import annotations

import shlex
import socket
import stat
import struct
from typing import TYPE_CHECKING

from .probe import Probe, observation

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ..report.diagnosis import ObservedFinding
    from .machine import Machine

PRIVATE_KEY = b"PRIVATE KEY"
AGENT_S = 1.0
# The agent protocol: SSH_AGENTC_REQUEST_IDENTITIES.
REQUEST_IDENTITIES = 11
WRITABLE_FOR_ANYBODY = stat.S_IWGRP | stat.S_IWOTH
OPEN_FOR_ANYBODY = stat.S_IRWXG | stat.S_IRWXO


def keys(machine: Machine) -> Iterator[ObservedFinding]:
    """What ssh and sshd (StrictModes) refuse: keys that others may read, and a home, folder or
    authorized_keys that others may write."""
    folder = f"{machine.home}/.ssh"
    if not machine.path(folder).is_dir():
        return
    for path in (machine.home, folder, f"{folder}/authorized_keys"):
        mode = _mode(machine.path(path))
        if mode & WRITABLE_FOR_ANYBODY:
            command = f"chmod go-w {shlex.quote(path)}"
            message = f"others may write {path}"
            yield observation("ssh-key-open", message, f"mode of {path}", oct(mode), command)
    for file in machine.glob(folder, "*"):
        mode = _mode(file)
        if mode & OPEN_FOR_ANYBODY and _is_private_key(file):
            path = machine.name(file)
            command = f"chmod 600 {shlex.quote(path)}"
            message = f"others may use the private key {path}"
            yield observation("ssh-key-open", message, f"mode of {path}", oct(mode), command)


def _mode(path: Path) -> int:
    """0 if it cannot be read."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return 0


def _is_private_key(path: Path) -> bool:
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return PRIVATE_KEY in file.readline(100)
    except OSError:
        return False


def agent(machine: Machine) -> Iterator[ObservedFinding]:
    path = machine.environment.get("SSH_AUTH_SOCK", "")
    if not path or not machine.is_real:
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
        message = f"the agent at {path} does not respond: {reason}"
        yield observation("ssh-agent-dead", message, "variable SSH_AUTH_SOCK", path)


PROBES = (
    Probe("ssh keys", ("ssh-key-open",), keys),
    Probe("ssh agent", ("ssh-agent-dead",), agent),
)
