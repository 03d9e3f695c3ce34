"""Times and checks one operation. Between the two readings of the clock there is the call and nothing of ours.

Owns the loops that are timed: benchmarks/bench_smoke_overhead.py compares them with a bare loop of the same calls. Not even
between two calls is there more than in that loop: noting each call, 2 us by itself, made a call of 8 bytes take a tenth longer.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from .operations import Operation


def times_us(found: Operation, meet: Callable[[], Any], repeats: int, on_gpu: bool) -> list[float]:
    """Microseconds of each call. In place the result is the next call's input: zeros, whose sums do not overflow."""
    if found.in_place:
        found.settle()
    renew = _nothing if found.in_place else found.renew
    timed = on_gpu_us if on_gpu else on_cpu_us
    return timed(found.call, renew, meet, repeats)


def on_cpu_us(
    call: Callable[[], Any], renew: Callable[[], Any], meet: Callable[[], Any], repeats: int
) -> list[float]:
    """All ranks meet before each call, so that none of them waits in it for another that came late."""
    clock = time.perf_counter
    taken = []
    for _ in range(repeats):
        renew()
        meet()
        started = clock()
        call()
        taken.append((clock() - started) * 1e6)
    return taken


def on_gpu_us(
    call: Callable[[], Any], renew: Callable[[], Any], meet: Callable[[], Any], repeats: int
) -> list[float]:
    """All calls are queued, then waited for once: the device's own clock is read between them, not the host's."""
    import torch

    pairs = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
        for _ in range(repeats)
    ]
    meet()
    for begin, end in pairs:
        renew()
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return [float(begin.elapsed_time(end)) * 1e3 for begin, end in pairs]


def _nothing() -> None:
    return None
