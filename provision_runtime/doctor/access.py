"""Probes: ssh keys and agent."""

from __future__ import annotations

import os
import shlex
import socket
import stat
import struct
from typing import TYPE_CHECKING

from .probe import Observation, Probe, observation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .machine import Machine

PRIVATE_KEY = b"PRIVATE KEY"
AGENT_S = 1.0
# The agent protocol: SSH_AGENTC_REQUEST_IDENTITIES.
REQUEST_IDENTITIES = 11
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
FOR_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def keys(machine: Machine) -> Iterator[Observation]:
    """What ssh and sshd (StrictModes) refuse: keys that others may read, and a home, folder or
    authorized_keys that others may write."""
    folder = f"{machine.home}/.ssh"
    if not machine.path(folder).is_dir():
        return
    for path in (machine.home, folder, f"{folder}/authorized_keys"):
        mode = _mode(machine, path)
        if mode is not None and mode & WRITABLE_BY_OTHERS:
            command = f"chmod go-w {shlex.quote(path)}"
            message = f"others may write {path}"
            yield observation("ssh-key-open", message, f"mode of {path}", oct(mode), command)
    for file in machine.glob(folder, "*"):
        path = machine.name(file)
        mode = _mode(machine, path)
        if mode is not None and mode & FOR_OTHERS and _is_private_key(str(file)):
            message = f"others may use the private key {path}"
            yield observation(
                "ssh-key-open",
                message,
                f"mode of {path}",
                oct(mode),
                f"chmod 600 {shlex.quote(path)}",
            )


def _mode(machine: Machine, path: str) -> int | None:
    try:
        return stat.S_IMODE(os.stat(machine.path(path)).st_mode)
    except OSError:
        return None


def _is_private_key(path: str) -> bool:
    if not os.path.isfile(path):
        return False
    try:
        with open(path, "rb") as file:
            return PRIVATE_KEY in file.readline(100)
    except OSError:
        return False


def agent(machine: Machine) -> Iterator[Observation]:
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
