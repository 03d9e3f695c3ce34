"""What the network allows: why a port is unreachable, and whether ranks on different hosts reach one
another.

A backend that cannot connect its ranks waits, and then names no rank. So before the backend starts,
every rank listens where the backend would, and connects to a rank on the next host. Ranks on the
same host need no check.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Sequence

from ..checks.interfaces import INTERFACE_VARIABLES, configured_interface
from ..comm.addresses import address_of, host_address, interfaces, is_loopback
from .context import RankContext
from .outcome import Outcome, with_finding

CONNECT_S = 3.0


def why_unreachable(address: str, port: int) -> tuple[str, str] | None:
    """The finding's id and the reason why connecting fails now; None if it succeeds."""
    where = f"{address}:{port}"
    try:
        resolved = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        return "master-unresolvable", f"the name {address} does not resolve here: {error.strerror}"
    family, kind, protocol, _, target = resolved[0]
    if target[0] != address:
        where += f" ({target[0]})"
    with socket.socket(family, kind, protocol) as probe:
        probe.settimeout(CONNECT_S)
        try:
            probe.connect(target)
        except ConnectionRefusedError:
            return "store-refused", f"nothing listens at {where}"
        except (socket.timeout, TimeoutError):
            return "store-filtered", f"{where} does not respond"
        except OSError as error:
            if error.errno == errno.ENETUNREACH and is_loopback(str(target[0])):
                return "loopback-down", f"{where} is unreachable: the interface lo is down"
            return "store-unreachable", f"{where} is unreachable: {error.strerror or error}"
    return None


def backend_address(context: RankContext) -> str:
    """The address of this host that the backend will use. Raises LookupError if there is none."""
    interface = configured_interface(context.backend, os.environ, interfaces())
    if interface is not None:
        address = address_of(interface)
        if address is None:
            raise LookupError(f"the interface {interface} has no IPv4 address")
        return address
    if context.backend == "gloo":
        return host_address() or "127.0.0.1"
    # NCCL: the address from which the route to the master leads. Nothing is sent.
    family, kind, protocol, _, target = socket.getaddrinfo(
        context.env.master_addr, context.env.master_port, type=socket.SOCK_DGRAM
    )[0]
    with contextlib.closing(socket.socket(family, kind, protocol)) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])


def check_peers(context: RankContext) -> Outcome:
    """All ranks at once: each has an address, and connects to a rank on the next host. Broken if a
    rank cannot."""
    host, address, port, problem = context.env.host, "", 0, ""
    is_spread = len(context.hosts) > 1
    finding_id = "interface-absent"
    with contextlib.ExitStack() as stack:
        try:
            address = backend_address(context)
            if is_spread:
                family = socket.AF_INET6 if ":" in address else socket.AF_INET
                server = stack.enter_context(socket.create_server((address, 0), family=family))
                port = server.getsockname()[1]
        except (LookupError, OSError) as error:
            problem = f"{error} on {host}"
        # NCCL never uses a loopback address; if the route to the master is one, that only means
        # that the master is on this host.
        if context.backend == "gloo" and is_spread and is_loopback(address):
            finding_id, variable = "interface-loopback", INTERFACE_VARIABLES["gloo"]
            problem = f"{host} resolves to {address} on itself"
            if os.environ.get(variable):
                problem = f"{variable}={os.environ[variable]}: {address} on {host}"
                problem += ", which other hosts cannot reach"
        addresses = context.exchange("addresses", [host, address, port, problem])
        if problem:
            outcome = with_finding(finding_id, problem, broken=True)
        elif any(problem for *_, problem in addresses):
            outcome = Outcome("a rank has no address that its backend could use", broken=True)
        else:
            outcome = _connect_to_next_host(context.env.rank, addresses)
        context.exchange("addresses tried", None)
    return outcome


def _connect_to_next_host(sender: int, addresses: Sequence[tuple[str, str, int, str]]) -> Outcome:
    rank = next_rank_elsewhere(sender, [host for host, *_ in addresses])
    if rank is None or is_loopback(addresses[rank][1]):  # that rank reports it
        return Outcome()
    host, address, port, _ = addresses[rank]
    source = addresses[sender][1]
    try:
        socket.create_connection(
            (address, port), timeout=CONNECT_S, source_address=(source, 0)
        ).close()
    except OSError as error:
        reason = "no response" if isinstance(error, socket.timeout) else error.strerror or error
        message = f"from {source} it cannot reach rank {rank} on {host} at {address}: {reason}"
        return with_finding("peer-unreachable", message, broken=True)
    return Outcome()


def next_rank_elsewhere(rank: int, hosts: Sequence[str]) -> int | None:
    """The next rank in the ring that is on another host; None if there is only one host."""
    ring = [*range(rank + 1, len(hosts)), *range(rank)]
    return next((other for other in ring if hosts[other] != hosts[rank]), None)
