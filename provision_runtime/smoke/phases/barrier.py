"""Phase barrier: do all ranks reach it, how long does it take, and which rank keeps the others
waiting?"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from .. import measurement
from ..context import RankContext
from ..outcome import Finding, Outcome, combine

WARM_UP = 5
BARRIERS = {"quick": 50, "default": 200, "full": 1000}
FEWEST = 10
# A rank is slow if it arrives last at nearly every barrier and the others wait longer than this for
# it. On a busy machine, the scheduler delays a different rank each time.
LAST_SHARE = 0.8
WAITED_USEC = 10_000.0
INJECTED_DELAY_S = 0.05


def run(context: RankContext) -> Outcome:
    for _ in range(WARM_UP):
        call(context)
    profile = context.options.profile
    # Two ranks of a core wait for one another anyway.
    count = max(int(BARRIERS[profile] / max(context.crowding / 2, 1)), FEWEST)
    if context.options.fault("skip-barrier", context.env.rank):
        count -= 1
    is_slow = context.options.fault("slow-rank", context.env.rank)
    times_usec = []
    for _ in range(count):
        if is_slow:
            time.sleep(INJECTED_DELAY_S)
        started = time.perf_counter()
        call(context)
        times_usec.append((time.perf_counter() - started) * 1e6)
    return Outcome(data={"times_usec": times_usec})


def merge(outcomes: Sequence[Outcome]) -> Outcome:
    """The slowest rank is the one that spends the least time in barriers: it arrives last, and the
    others wait for it."""
    times_by_rank = [outcome.data["times_usec"] for outcome in outcomes]
    barriers_usec = list(map(max, zip(*times_by_rank)))
    medians = list(map(statistics.median_low, times_by_rank))
    p50, p99 = (measurement.percentile(barriers_usec, percent) for percent in (50, 99))
    longest, slowest = max(barriers_usec), medians.index(min(medians))
    data = {
        "count": len(barriers_usec),
        "p50_us": round(p50, 1),
        "p99_us": round(p99, 1),
        "max_us": round(longest, 1),
        "slowest_rank": slowest,
    }
    message = (
        f"{len(barriers_usec)} barriers, p50 {measurement.format_time(p50)}, "
        f"p99 {measurement.format_time(p99)}, max {measurement.format_time(longest)}, "
        f"slowest rank {slowest}"
    )
    return Outcome(message, (*combine(outcomes).findings, *slow_ranks(times_by_rank)), data)


def slow_ranks(times_by_rank: Sequence[Sequence[float]]) -> tuple[Finding, ...]:
    """The rank that the others waited for at nearly every barrier, if there is one."""
    if len(times_by_rank) < 2:
        return ()
    # For each rank, how long the others waited for it at the barriers where they did.
    waits_usec: list[list[float]] = [[] for _ in times_by_rank]
    for barrier_usec in zip(*times_by_rank):
        (shortest, rank), (second, _) = sorted(zip(barrier_usec, range(len(waits_usec))))[:2]
        if second - shortest > WAITED_USEC:
            waits_usec[rank].append(second - shortest)
    waits, count = max(waits_usec, key=len), len(times_by_rank[0])
    if len(waits) < LAST_SHARE * count:
        return ()
    typical = measurement.format_time(statistics.median_low(waits))
    message = (
        f"the others waited for it at {len(waits)} of {count} barriers, typically for {typical}"
    )
    return (Finding("slow-rank", message, (waits_usec.index(waits),)),)


def call(context: RankContext) -> None:
    context.begin_collective("barrier")
    backend_barrier(context)()


def backend_barrier(context: RankContext) -> Callable[[], Any]:
    """The bare call, for callers that log it themselves."""
    from torch import distributed

    if context.backend == "nccl":
        return partial(distributed.barrier, device_ids=[context.gpu])
    return partial(distributed.barrier)
