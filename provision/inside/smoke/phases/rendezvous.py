"""Phase rendezvous: every rank reaches the store, and a process group of the backend asked for comes up."""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ..meeting import Mailbox, Meeting, RanksMissing
from ..outcome import Outcome, broke, failed, fold, name_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..session import Session

# Longer than any phase: our watchdog, which names the culprit, comes before the backend's own time-out, which does not.
GROUP_TIMEOUT = timedelta(seconds=900)
# Connecting gives up only after the deadline, for the same reason.
BEYOND_S = 10.0
ADVICE = "check that every rank can reach MASTER_ADDR:MASTER_PORT, and that as many ranks were started as promised"


class PortBusy(Exception):
    """Another process listens on the port of the store."""


def run(session: Session) -> Outcome:
    started = time.monotonic()
    try:
        _reach_store(session)
        met_s = time.monotonic() - started
        hellos = session.exchange("hello", [session.place.host, session.unusable])
        session.hosts = list(dict.fromkeys(host for host, _ in hellos))
    except RanksMissing as missing:
        return broke(str(missing), ADVICE)
    except RuntimeError as error:
        return broke(f"the store at {_address(session)} cannot be reached: {error}", ADVICE)
    unable = [rank for rank, (_, unusable) in enumerate(hellos) if unusable]
    if unable:
        return broke(f"no process group was started: {name_ranks(unable)} cannot use {session.backend}")
    session.enter("init_process_group")
    used = _start_group(session)
    data = {"hosts": session.hosts, "store_s": round(met_s, 3), "group_s": round(time.monotonic() - started - met_s, 3)}
    if used != session.backend:
        return failed(f"the process group runs on {used}, but {session.backend} was asked for", data=data)
    hosts = f"{len(session.hosts)} host{'s' if len(session.hosts) > 1 else ''}"
    ranks = session.place.world_size
    return Outcome(message=f"{ranks} rank{'s' if ranks > 1 else ''} on {hosts}, {used}", data=data)


def merge(outcomes: Sequence[Outcome]) -> Outcome:
    return fold(outcomes)


def _reach_store(session: Session) -> None:
    """Connects three times: the group, the meeting and the watchdog must not wait for one another's lock."""
    place = session.place
    timeout = timedelta(seconds=max(session.remaining_s() + BEYOND_S, 1))
    session.enter("reach the store")
    session.store = _connect(session, place.rank == 0 and not place.store_is_hosted, timeout)
    session.mailbox = Mailbox(_connect(session, False, timeout))
    session.meeting = Meeting(session.mailbox, place.rank, place.world_size)
    session.watchdog_mailbox = Mailbox(_connect(session, False, timeout))
    session.mailbox.post(f"at/{place.rank}", session.phase)


def _connect(session: Session, is_host: bool, timeout: timedelta) -> Any:
    from torch.distributed import PrefixStore, TCPStore

    place = session.place
    try:
        # The number of workers is not given: nobody waits here for ranks that never come.
        store = TCPStore(place.master_addr, place.master_port, is_master=is_host, timeout=timeout, wait_for_workers=False)
    except RuntimeError as error:
        if is_host and ("EADDRINUSE" in str(error) or "in use" in str(error)):
            raise PortBusy(f"{_address(session)} is in use by another process") from error
        raise
    return PrefixStore(f"provision/{place.attempt}", store)


def _start_group(session: Session) -> str:
    import torch
    from torch.distributed import PrefixStore

    place = session.place
    if place.all_local and any(name == "lo" for _, name in socket.if_nameindex()):
        # Gloo takes the address its host name resolves to; a container without a network resolves nothing.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if "OMP_NUM_THREADS" not in os.environ:
        # As torchrun does: ranks that each take all cores slow one another down.
        torch.set_num_threads(1)
    if session.on_gpu:
        torch.cuda.set_device(session.device)
    torch.distributed.init_process_group(
        session.backend,
        store=PrefixStore("group", session.store),
        rank=place.rank,
        world_size=place.world_size,
        timeout=GROUP_TIMEOUT,
    )
    return str(torch.distributed.get_backend())


def _address(session: Session) -> str:
    return f"{session.place.master_addr}:{session.place.master_port}"
