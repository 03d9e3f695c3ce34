"""Phase barrier: do all ranks meet, how long does it take, and who keeps the others waiting?

Twice: through the backend's own barrier, and through the store, which works when the backend does not and says who is
missing.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import timing
from ..outcome import Finding, Outcome, fold

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..session import Session

WARM_UP = 5
TIMED = {"quick": 50, "default": 200, "full": 1000}
NAMED = {"quick": 10, "default": 20, "full": 50}
LEAST = 10
# A rank is slow when it comes last to nearly every barrier and then the others have waited this long for it: what a
# scheduler does to ranks on a busy machine hits now this rank, now that one.
LAST_SHARE = 0.8
WAITED_US = 10_000.0
REHEARSED_DELAY_S = 0.05


def run(session: Session) -> Outcome:
    for _ in range(WARM_UP):
        meet(session)
    timed = max(TIMED[session.options.profile] // session.crowding, LEAST)
    turns = timed - 1 if session.options.fault("skip-barrier", session.place.rank) else timed
    times = [_timed(session) for _ in range(turns)]
    return Outcome(
        data={
            "times_us": times,
            "named_us": [_named(session, turn) for turn in range(_named_turns(session))],
        }
    )


def merge(outcomes: Sequence[Outcome]) -> Outcome:
    times = [outcome.data["times_us"] for outcome in outcomes]
    data = {
        **summarize(times),
        "store": summarize([outcome.data["named_us"] for outcome in outcomes]),
    }
    tail = f"p99 {timing.time_in_words(data['p99_us'])}, max {timing.time_in_words(data['max_us'])}"
    message = f"{data['count']} barriers, p50 {timing.time_in_words(data['p50_us'])}, {tail}"
    findings = (*fold(outcomes).findings, *slow_ranks(times))
    return Outcome(f"{message}, slowest rank {data['slowest_rank']}", findings, data)


def summarize(times_us: Sequence[Sequence[float]]) -> dict[str, Any]:
    """The slowest rank is the one that spends least time in barriers: it comes last, and the others wait for it."""
    whole = timing.slowest_each(times_us)
    inside = [timing.median(times) for times in times_us]
    return {
        "count": len(whole),
        "p50_us": round(timing.percentile(whole, 50), 1),
        "p99_us": round(timing.percentile(whole, 99), 1),
        "max_us": round(max(whole), 1),
        "slowest_rank": inside.index(min(inside)),
        "p50_us_by_rank": [round(value, 1) for value in inside],
    }


def slow_ranks(times_us: Sequence[Sequence[float]]) -> tuple[Finding, ...]:
    """The rank that the others waited for at nearly every barrier: all of them spent longer in it."""
    turns = [[times[turn] for times in times_us] for turn in range(len(times_us[0]))]
    if len(times_us) < 2:
        return ()
    waited = {
        rank: [min(turn[:rank] + turn[rank + 1 :]) - turn[rank] for turn in turns]
        for rank in range(len(times_us))
    }
    late = {rank: sum(wait > WAITED_US for wait in waits) for rank, waits in waited.items()}
    rank = max(late, key=lambda candidate: late[candidate])
    if late[rank] < LAST_SHARE * len(turns):
        return ()
    typical = timing.time_in_words(timing.median(waited[rank]))
    return (
        Finding(
            "slow-rank",
            f"the others waited for it at {late[rank]} of {len(turns)} barriers, typically {typical}",
            (rank,),
        ),
    )


def meet(session: Session) -> None:
    """A barrier of the backend itself."""
    session.enter("barrier")
    backend_barrier(session)()


def backend_barrier(session: Session) -> Callable[[], Any]:
    """The bare call, for those who note it themselves."""
    from torch import distributed

    return (
        partial(distributed.barrier, device_ids=[session.gpu])
        if session.backend == "nccl"
        else partial(distributed.barrier)
    )


def _timed(session: Session) -> float:
    if session.options.fault("slow-rank", session.place.rank):
        time.sleep(REHEARSED_DELAY_S)
    started = time.perf_counter()
    meet(session)
    return (time.perf_counter() - started) * 1e6


def _named_turns(session: Session) -> int:
    return max(NAMED[session.options.profile] // session.crowding, 3)


def _named(session: Session, turn: int) -> float:
    """A barrier through the store, which knows every rank by name."""
    started = time.perf_counter()
    session.exchange(f"named barrier {turn}", None)
    return (time.perf_counter() - started) * 1e6
