"""Phase barrier: do all ranks meet, how long does it take, and who keeps the others waiting?"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from .. import timing
from ..outcome import Outcome, fold

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..session import Session

WARM_UP = 5
TIMED = 200
TIMED_QUICK = 50


def run(session: Session) -> Outcome:
    for _ in range(WARM_UP):
        meet(session)
    timed = TIMED_QUICK if session.options.quick else TIMED
    if session.options.fault("skip-barrier", session.place.rank):
        timed -= 1
    return Outcome(data={"times_us": [_timed(session) for _ in range(timed)]})


def merge(outcomes: Sequence[Outcome]) -> Outcome:
    folded = fold(outcomes)
    if folded.verdict != "pass":
        return folded
    data = summarize([outcome.data["times_us"] for outcome in outcomes])
    tail = f"p99 {timing.time_in_words(data['p99_us'])}, max {timing.time_in_words(data['max_us'])}"
    message = f"{data['count']} barriers, p50 {timing.time_in_words(data['p50_us'])}, {tail}"
    return Outcome(message=f"{message}, slowest rank {data['slowest_rank']}", data=data)


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


def meet(session: Session) -> None:
    """A barrier of the backend itself."""
    from torch import distributed

    session.enter("barrier")
    if session.on_gpu:
        distributed.barrier(device_ids=[session.place.local_rank])
    else:
        distributed.barrier()


def _timed(session: Session) -> float:
    started = time.perf_counter()
    meet(session)
    return (time.perf_counter() - started) * 1e6
