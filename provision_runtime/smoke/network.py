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
from typing import TYPE_CHECKING

from ..checks.interfaces import INTERFACE_VARIABLES, configured_interface
from ..comm.addresses import address_of, host_address, interfaces, is_loopback
from .outcome import Outcome, with_finding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .context import RankContext

CONNECT_S = 3.0


def why_unresolvable(address: str, port: int) -> tuple[str, str] | None:
    """The finding's id and the reason why a name does not resolve now; None if it does."""
    try:
        socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        return "master-unresolvable", f"the name {address} does not resolve here: {error.strerror}"
    return None


def why_unreachable(
    address: str, port: int, timeout_s: float = CONNECT_S
) -> tuple[str, str] | None:
    """The finding's id and the reason why connecting fails now; None if it succeeds."""
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
            return _unreachable_reason(error, f"{address}:{port}", target[0])
    return None


def _unreachable_reason(error: OSError, address: str, resolved: object) -> tuple[str, str]:
    where = address if address.startswith(f"{resolved}:") else f"{address} ({resolved})"
    if error.errno == errno.ECONNREFUSED:
        return "store-refused", f"nothing listens at {where}"
    if isinstance(error, socket.timeout) or error.errno == errno.ETIMEDOUT:
        return "store-filtered", f"{where} does not respond"
    if error.errno == errno.ENETUNREACH and is_loopback(str(resolved)):
        return "loopback-down", f"{where} is unreachable: the interface lo is down"
    return "store-unreachable", f"{where} is unreachable: {error.strerror or error}"


def interface_problem(backend: str) -> str:
    """What is wrong with the interface that the backend's variable names; empty if nothing is."""
    try:
        configured_interface(backend, os.environ, interfaces())
    except LookupError as error:
        return str(error)
    return ""


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
    """All ranks at once: each connects to a rank on the next host. Broken if this rank cannot."""
    host, backend = context.env.host, context.backend
    address, port, problem = "", 0, ""
    with contextlib.ExitStack() as stack:
        try:
            address = backend_address(context)
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            server = stack.enter_context(socket.create_server((address, 0), family=family))
            port = server.getsockname()[1]
        except (LookupError, OSError) as error:
            problem = f"{host} has no address to listen on: {error}"
        addresses = context.exchange("addresses", [host, "" if problem else address, port])
        if problem:
            outcome = with_finding("interface-absent", problem, broken=True)
        elif backend == "gloo" and is_loopback(address):
            # NCCL never uses a loopback address; if the route to the master is one, that only means
            # that the master is on this host.
            variable = INTERFACE_VARIABLES["gloo"]
            message = f"{host} resolves to {address} on itself"
            if os.environ.get(variable):
                message = f"{variable}={os.environ[variable]}: {address} on {host}"
                message += ", which other hosts cannot reach"
            outcome = with_finding("interface-loopback", message, broken=True)
        else:
            outcome = _connect_to_next_host(context.env.rank, addresses)
        context.exchange("addresses tried", None)
    return outcome


def _connect_to_next_host(sender: int, addresses: Sequence[tuple[str, str, int]]) -> Outcome:
    rank = next_rank_elsewhere(sender, [host for host, _, _ in addresses])
    if rank is None:
        return Outcome()
    host, address, port = addresses[rank]
    if not address or is_loopback(address):  # that rank reports it
        return Outcome()
    source = addresses[sender][1]
    try:
        socket.create_connection(
            (address, port), timeout=CONNECT_S, source_address=(source, 0)
        ).close()
    except OSError as error:
        reason = (
            "no response" if isinstance(error, socket.timeout) else error.strerror or str(error)
        )
        message = f"from {source} it cannot reach rank {rank} on {host} at {address}: {reason}"
        return with_finding("peer-unreachable", message, broken=True)
    return Outcome(data={"address": source})


def next_rank_elsewhere(rank: int, hosts: Sequence[str]) -> int | None:
    """The next rank in the ring that is on another host; None if there is only one host."""
    for step in range(1, len(hosts)):
        candidate = (rank + step) % len(hosts)
        if hosts[candidate] != hosts[rank]:
            return candidate
    return None
