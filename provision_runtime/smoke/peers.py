"""Whether the ranks of different hosts reach one another at the addresses that the backend will use.

A backend that cannot connect its ranks waits, and then names nobody. So every rank listens where the backend would, and
connects to a rank of the next host, before the backend does. Ranks of one host need no such test.
"""

from __future__ import annotations

import os
import socket
from contextlib import closing
from typing import TYPE_CHECKING, Any

from . import sockets
from .outcome import Outcome, found

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .session import Session

VARIABLES = {"gloo": "GLOO_SOCKET_IFNAME", "nccl": "NCCL_SOCKET_IFNAME"}
CONNECT_S = 3.0


def chosen_interface(
    backend: str, environment: Mapping[str, str], there_are: Sequence[str]
) -> str | None:
    """The first interface that the backend's variable names; None where it leaves the choice. Raises LookupError when none fits.

    Gloo takes whole names; NCCL prefixes, whole names after `=`, and exclusions after `^` (NCCL's environment variables).
    """
    wish = environment.get(VARIABLES.get(backend, ""), "")
    if not wish or wish.startswith("^"):
        return None
    names = wish.lstrip("=").split(",")
    is_whole = backend == "gloo" or wish.startswith("=")
    fits = [
        have
        for name in names
        for have in there_are
        if (have == name if is_whole else have.startswith(name))
    ]
    if not fits:
        raise LookupError(
            f"{VARIABLES[backend]}={wish}, but the interfaces here are {', '.join(there_are)}"
        )
    return fits[0]


def backend_address(session: Session) -> str:
    """The address of this host that the backend will take. Raises LookupError when there is none."""
    interface = chosen_interface(session.backend, os.environ, sockets.interfaces())
    if interface is not None:
        address = sockets.address_of(interface)
        if address is None:
            raise LookupError(f"the interface {interface} has no IPv4 address")
        return address
    if session.backend == "gloo":
        return sockets.own_address() or "127.0.0.1"
    return _address_towards(session.place.master_addr, session.place.master_port)


def _address_towards(host: str, port: int) -> str:
    """The address from which the route to a host leads; nothing is sent."""
    family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with closing(socket.socket(family, kind, protocol)) as asking:
        asking.connect(target)
        return str(asking.getsockname()[0])


def probe(session: Session) -> Outcome:
    """On every rank at once. Broken where this rank cannot reach the next host's."""
    try:
        address, trouble = backend_address(session), ""
        listening = _listen(address)
    except (LookupError, OSError) as error:
        address, trouble = "", f"there is no address of this host to listen at: {error}"
        listening = _listen("")
    with closing(listening):
        here = [session.place.host, address, listening.getsockname()[1] if address else 0]
        there = session.exchange("addresses", here)
        outcome = _refused(trouble, address, session) or _connect(session, there)
        session.exchange("addresses tried", None)
    return outcome


def _listen(address: str) -> socket.socket:
    listening = socket.socket(
        socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM
    )
    if address:
        listening.bind((address, 0))
        listening.listen(8)
    return listening


def _refused(trouble: str, address: str, session: Session) -> Outcome | None:
    if trouble:
        return found("interface-absent", trouble, broken=True)
    # NCCL never takes a loopback address for its own; that the route to the master is one only says that the master is here.
    if session.backend == "gloo" and sockets.is_loopback(address):
        return found(
            "interface-loopback",
            f"{session.place.host} resolves to {address} on itself",
            broken=True,
        )
    return None


def _connect(session: Session, there: Sequence[Sequence[Any]]) -> Outcome:
    rank = next_elsewhere(session.place.rank, [host for host, _, _ in there])
    if rank is None or not there[rank][1] or sockets.is_loopback(there[rank][1]):
        return Outcome()
    host, address, port = there[rank]
    own = there[session.place.rank][1]
    try:
        with closing(
            socket.create_connection((address, port), timeout=CONNECT_S, source_address=(own, 0))
        ):
            return Outcome(data={"address": own})
    except OSError as error:
        reason = "no answer" if isinstance(error, socket.timeout) else error.strerror or str(error)
        return found(
            "peer-unreachable",
            f"from {own} it cannot reach rank {rank} on {host} at {address}: {reason}",
            broken=True,
        )


def next_elsewhere(rank: int, hosts: Sequence[str]) -> int | None:
    """The next rank in the ring that is on another host."""
    after = [(rank + step) % len(hosts) for step in range(1, len(hosts))]
    return next((other for other in after if hosts[other] != hosts[rank]), None)
