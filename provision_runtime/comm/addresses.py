"""This host's network interfaces and addresses."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

# linux/sockios.h: the ioctl that reads an interface's IPv4 address.
SIOCGIFADDR = 0x8915
IPV6_ADDRESSES = Path("/proc/net/if_inet6")


def interfaces() -> list[str]:
    return [name for _, name in socket.if_nameindex()]


def address_of(interface: str) -> str | None:
    """The IPv4 address of an interface (netdevice(7), SIOCGIFADDR); None if it has none."""
    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            reply = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
        except OSError:
            return None
    return socket.inet_ntoa(reply[20:24])


def host_address() -> str | None:
    """The address that this host's own name resolves to: Gloo uses it unless an interface is
    set."""
    try:
        return str(socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)[0][4][0])
    except socket.gaierror:
        return None


def free_port() -> int:
    """A port on which nothing listens now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def interface_with(address: str) -> str | None:
    if ":" not in address:
        for interface in interfaces():
            if address_of(interface) == address:
                return interface
        return None
    digits = ipaddress.IPv6Address(address.partition("%")[0]).exploded.replace(":", "")
    for line in IPV6_ADDRESSES.read_text().splitlines():
        fields = line.split()
        if fields[0] == digits:
            return fields[-1]
    return None
