"""Probes: this host's name, routes, interfaces and ports."""

from __future__ import annotations

import os
import re
import socket
from typing import TYPE_CHECKING

from ..checks.interfaces import INTERFACE_VARIABLES, configured_interface
from ..comm import listeners
from ..comm.addresses import is_loopback
from .probe import Findings, Probes, observation

if TYPE_CHECKING:
    from .machine import Machine

# torchrun's default.
DEFAULT_PORT = 29500
ROUTES = "/proc/net/route"
# Of its rows: interface, destination, gateway, flags, metric and mask.
ROUTE = re.compile(r"(?m)^(\S+)\t(\w{8})\t(\w{8})\t(\w{4})\t\S+\t\S+\t(\S+)\t(\w{8})")
# The flag of a route that is in use (linux/route.h, RTF_UP).
ROUTE_UP = 0x1


def host_name(machine: Machine) -> Findings:
    name, addresses = _host_addresses(machine)
    if not addresses:
        yield observation(
            "own-name-unresolvable",
            f"{name} does not resolve on this host",
            f"getaddrinfo({name})",
            "no address",
        )
    elif has_peers(machine) and all(map(is_loopback, addresses)):
        yield observation(
            "interface-loopback",
            f"{name} resolves to {addresses[0]} on this host",
            f"getaddrinfo({name})",
            ", ".join(addresses),
        )


def has_peers(machine: Machine) -> bool:
    """Whether jobs here span hosts: only then a loopback address is wrong."""
    return machine.has_peers or machine.variable("SLURM_JOB_NUM_NODES") not in ("", "1")


def _host_addresses(machine: Machine) -> tuple[str, list[str]]:
    """A captured machine has no resolver: only its hosts file counts."""
    if machine.is_real:
        name = socket.gethostname()
        try:
            entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except socket.gaierror:
            return name, []
        return name, [str(entry[4][0]) for entry in entries]
    name = (machine.read("/etc/hostname") or "localhost").strip()
    rows = [line.partition("#")[0].split() for line in machine.read("/etc/hosts").splitlines()]
    return name, [fields[0] for fields in rows if name in fields[1:]]


def routes(machine: Machine) -> Findings:
    """Two routes with the same network, mask and metric: the kernel takes whichever came first."""
    interfaces: dict[tuple[str, str, str], set[str]] = {}
    for name, destination, _, flags, metric, mask in ROUTE.findall(machine.read(ROUTES)):
        if int(flags, 16) & ROUTE_UP:
            interfaces.setdefault((destination, mask, metric), set()).add(name)
    for (destination, mask, _), names in interfaces.items():
        if len(names) > 1:
            # Addresses are in the machine's byte order.
            address = socket.inet_ntoa(int(destination, 16).to_bytes(4, "little"))
            network = f"{address}/{bin(int(mask, 16)).count('1')}"
            yield observation(
                "routes-duplicate",
                f"{' and '.join(sorted(names))} both lead to {network}",
                ROUTES,
                network,
            )


def interfaces(machine: Machine) -> Findings:
    available = [path.name for path in machine.glob("/sys/class/net", "*")]
    for backend, variable in INTERFACE_VARIABLES.items():
        try:
            configured_interface(backend, machine.environment, available)
        except LookupError as error:
            yield observation(
                "interface-absent",
                str(error),
                f"variable {variable}",
                machine.variable(variable),
                f"unset {variable}",
            )
    # Up, it is `unknown`: it has no carrier.
    file = "/sys/class/net/lo/operstate"
    if machine.read(file).strip() == "down":
        yield observation("loopback-down", "the interface lo is down", file, "down")


def port(machine: Machine) -> Findings:
    """MASTER_PORT; or torchrun's default port if a process of this user listens there, since that of
    another user may be a healthy job."""
    if not machine.is_real:
        return
    variable = machine.variable("MASTER_PORT")
    number = int(variable) if variable.isdigit() else DEFAULT_PORT
    if not listeners.listening_inodes(number):
        return
    owner = listeners.listener(number)
    is_rank_zero = machine.variable("RANK") in ("", "0")
    if variable and is_rank_zero:
        source = "variable MASTER_PORT"
    elif owner and os.getuid() != 0:
        source = "torchrun's default port"
    else:
        return
    yield observation(
        "port-busy",
        f"{owner or 'a process of another user'} listens on port {number}",
        source,
        str(number),
        f"ss -ltnp 'sport = :{number}'",
    )


PROBES: Probes = {
    "own name": host_name,
    "routes": routes,
    "interfaces": interfaces,
    "port": port,
}
