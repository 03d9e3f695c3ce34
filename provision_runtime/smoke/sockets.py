"""What the network says: why a port cannot be reached, who listens on one, which address an interface has. Standard library only."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import struct
from typing import TYPE_CHECKING

from ..comm import processes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SIOCGIFADDR = 0x8915
LISTENING = "0A"
CONNECT_S = 3.0


def why_unresolvable(address: str, port: int) -> tuple[str, str] | None:
    """The finding's id and the reason why a name has no address now; None when it has one."""
    try:
        socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        return "master-unresolvable", f"the name {address} does not resolve here: {error.strerror}"
    return None


def why_unreachable(
    address: str, port: int, timeout_s: float = CONNECT_S
) -> tuple[str, str] | None:
    """The finding's id and the reason why a connection cannot be made now; None when one can."""
    unresolvable = why_unresolvable(address, port)
    if unresolvable is not None:
        return unresolvable
    resolved = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    family, kind, protocol, _, target = resolved[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.settimeout(timeout_s)
        try:
            probe.connect(target)
        except OSError as error:
            return _reason(error, f"{address}:{port}", target[0])
    return None


def _reason(error: OSError, asked: str, resolved: object) -> tuple[str, str]:
    where = asked if asked.startswith(f"{resolved}:") else f"{asked} ({resolved})"
    if error.errno == errno.ECONNREFUSED:
        return "store-refused", f"nothing listens at {where}"
    if isinstance(error, socket.timeout) or error.errno == errno.ETIMEDOUT:
        return "store-filtered", f"{where} does not answer"
    return "store-unreachable", f"{where} cannot be reached: {error.strerror or error}"


def listener(port: int) -> str:
    """The process that listens on a port of this host, in words; empty where that cannot be seen."""
    inodes = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    for folder in processes.PROC.glob("[0-9]*"):
        if inodes.intersection(_open_files(folder)):
            return f"{processes.command_line(int(folder.name))} (process {folder.name})"
    return ""


def _open_files(process: Path) -> Iterator[str]:
    """What the descriptors of a process lead to. Any of them, and the process, may be gone when it is looked at."""
    with contextlib.suppress(OSError):
        for entry in os.listdir(process / "fd"):
            with contextlib.suppress(OSError):
                yield os.readlink(process / "fd" / entry)


def _listening_inodes(port: int) -> list[str]:
    found = []
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (processes.PROC / "net" / name).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    found.append(fields[9])
    return found


def interfaces() -> list[str]:
    return [name for _, name in socket.if_nameindex()]


def address_of(interface: str) -> str | None:
    """Its IPv4 address, if it has one (netdevice(7), SIOCGIFADDR)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            answer = fcntl.ioctl(
                asking.fileno(), SIOCGIFADDR, struct.pack("256s", interface.encode()[:15])
            )
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def own_address() -> str | None:
    """What this host's own name resolves to: the address that Gloo takes where it is given no interface."""
    try:
        return str(socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)[0][4][0])
    except socket.gaierror:
        return None


def is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"
