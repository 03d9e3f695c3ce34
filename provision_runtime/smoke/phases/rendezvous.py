"""Phase rendezvous: every rank reaches the store, and a process group of the backend asked for comes up.

Who does not come is named, and where it can be known also why. Clocks are compared, since a store is at hand now.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ...comm.store import StoreAllGather, StoreClient
from .. import clock_skew, peers, sockets
from ..outcome import Outcome, fold, found

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..session import Session

# Longer than any phase: our watchdog, which names the culprit, comes before the backend's own time-out, which does not.
GROUP_TIMEOUT = timedelta(seconds=900)
# Connecting gives up so long before the deadline, or a third of it: this rank then leaves word of the reason before the others stop
# waiting. A store of another release may take seconds longer than it was given.
BEFORE_DEADLINE_S = 5.0
# device_id makes NCCL connect at once and barriers use the right GPU; in these releases it hangs (pytorch#153960).
DEVICE_ID_SINCE = (2, 3)
DEVICE_ID_HANGS = ((2, 6, 0), (2, 7, 1))
REHEARSED_SKEW_S = 30.0
NAME_PAUSE_S = 0.5


class PortBusy(Exception):
    """Another process listens on the port of the store."""


class Unreachable(Exception):
    """The store cannot be reached: the finding's id, and why."""

    def __init__(self, id: str, why: str) -> None:
        super().__init__(why)
        self.id = id


def run(session: Session) -> Outcome:
    started = time.monotonic()
    try:
        _reach_store(session)
    except Unreachable as error:
        return found(error.id, str(error), broken=True)
    met_s = time.monotonic() - started
    hellos = session.exchange("hello", [session.where(), session.unusable, session.place.crowding])
    session.met = {rank: where for rank, (where, _, _) in enumerate(hellos)}
    session.hosts = list(dict.fromkeys(where["host"] for where in session.met.values()))
    session.crowding = max(crowding for _, _, crowding in hellos)
    data = {"hosts": session.hosts, "store_s": round(met_s, 3), "clock": _compare_clocks(session)}
    unable = [rank for rank, (_, unusable, _) in enumerate(hellos) if unusable]
    if unable:
        return found(
            "backend-unusable",
            f"no process group was started: {session.backend} is not usable",
            unable,
            broken=True,
        )
    if len(session.hosts) > 1:
        reached = peers.probe(session)
        if reached.broken:
            return replace(reached, data=data)
    used = _start_group(session)
    data["group_s"] = round(time.monotonic() - started - met_s, 3)
    if used != session.backend:
        return found(
            "backend-other",
            f"the process group runs on {used}, but {session.backend} was asked for",
            data=data,
        )
    hosts = f"{len(session.hosts)} host{'s' if len(session.hosts) > 1 else ''}"
    ranks = session.place.world_size
    return Outcome(f"{ranks} rank{'s' if ranks > 1 else ''} on {hosts}, {used}", data=data)


def merge(outcomes: Sequence[Outcome]) -> Outcome:
    folded = fold(outcomes)
    clocks = [outcome.data.get("clock") for outcome in outcomes]
    bound = max((told["bound_s"] for told in clocks if told), default=None)
    data = {
        **folded.data,
        "clock": {"skew_s_by_rank": [told and told["skew_s"] for told in clocks], "bound_s": bound},
    }
    return replace(folded, findings=(*folded.findings, *clock_skew.judge(clocks)), data=data)


def _reach_store(session: Session) -> None:
    """Connects three times: the group, the meeting and the watchdog must not wait for one another's lock."""
    place = session.place
    remaining_s = session.remaining_s()
    ends_at = time.monotonic() + max(remaining_s - min(BEFORE_DEADLINE_S, remaining_s / 3), 1)
    session.step = "reach the store"
    _await_name(place.master_addr, place.master_port, ends_at)
    session.store = _connect(session, place.rank == 0 and not place.store_is_hosted, ends_at)
    session.mailbox = StoreClient(_connect(session, False, ends_at))
    session.meeting = StoreAllGather(session.mailbox, place.rank, place.world_size)
    session.watchdog_mailbox = StoreClient(_connect(session, False, ends_at))
    session.say_where()


def _await_name(address: str, port: int, ends_at: float) -> None:
    """A name may become known only when rank 0's host or container is up. torch's store would wait for that too, but was seen to come
    back 5 s and more after its own time-out (2.13), when nobody waits for the reason any longer."""
    while (why := sockets.why_unresolvable(address, port)) is not None:
        if time.monotonic() >= ends_at:
            raise Unreachable(*why)
        time.sleep(NAME_PAUSE_S)


def _connect(session: Session, is_host: bool, ends_at: float) -> Any:
    from torch.distributed import PrefixStore, TCPStore

    place = session.place
    timeout = timedelta(seconds=max(ends_at - time.monotonic(), 1))
    try:
        # The number of workers is not given: nobody waits here for ranks that never come.
        store = TCPStore(
            place.master_addr,
            place.master_port,
            is_master=is_host,
            timeout=timeout,
            wait_for_workers=False,
        )
    except RuntimeError as error:
        if is_host and ("EADDRINUSE" in str(error) or "in use" in str(error)):
            raise PortBusy(_busy(place.master_port)) from error
        raise _unreachable(place.master_addr, place.master_port, error) from error
    # Later waits of this store are for keys that are there.
    store.set_timeout(timedelta(seconds=session.remaining_s() + GROUP_TIMEOUT.total_seconds()))
    return PrefixStore(f"provision/{place.attempt}", store)


def _busy(port: int) -> str:
    owner = sockets.listener(port)
    return f"port {port} of this host is in use by {owner or 'another process'}"


def _unreachable(address: str, port: int, error: RuntimeError) -> Unreachable:
    found_out = sockets.why_unreachable(address, port)
    if found_out is not None:
        return Unreachable(*found_out)
    return Unreachable(
        "store-silent",
        f"{address}:{port} takes connections but does not speak as a store: {str(error).splitlines()[0]}",
    )


def _compare_clocks(session: Session) -> dict[str, float] | None:
    """Every rank's skew against rank 0; rank 0 answers one after the other."""
    place, mailbox = session.place, session.mailbox
    assert mailbox is not None
    session.step = "compare clocks"
    deadline = time.monotonic() + max(session.remaining_s(), 0)
    if place.rank == 0:
        for rank in range(1, place.world_size):
            clock_skew.tell(mailbox, rank, deadline)
        return {"skew_s": 0.0, "bound_s": 0.0}
    ahead_s = REHEARSED_SKEW_S if session.options.fault("clock-skew", place.rank) else 0.0
    return clock_skew.ask(mailbox, place.rank, deadline, ahead_s)


def _start_group(session: Session) -> str:
    import torch
    from torch.distributed import PrefixStore

    place = session.place
    if place.all_local and "lo" in sockets.interfaces():
        # Gloo takes the address its host name resolves to; a container without a network resolves nothing.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if "OMP_NUM_THREADS" not in os.environ:
        # As torchrun does: ranks that each take all cores slow one another down.
        torch.set_num_threads(1)
    if session.on_gpu:
        torch.cuda.set_device(session.device)
    is_bound = session.backend == "nccl" and takes_device_id(str(torch.__version__))
    bound = {"device_id": torch.device(session.device)} if is_bound else {}
    session.enter("init_process_group")
    torch.distributed.init_process_group(
        session.backend,
        store=PrefixStore("group", session.store),
        rank=place.rank,
        world_size=place.world_size,
        timeout=GROUP_TIMEOUT,
        **bound,
    )
    return str(torch.distributed.get_backend())


def takes_device_id(version: str) -> bool:
    release = tuple(int(number) for number in re.findall(r"\d+", version.split("+")[0])[:3])
    return release[:2] >= DEVICE_ID_SINCE and not DEVICE_ID_HANGS[0] <= release < DEVICE_ID_HANGS[1]
