"""Carries out the plan on this rank: first every row is checked and warmed up, then every row
timed.

This is nccl-tests' order: connections, channels and kernels must be warm for all sizes before the
first is timed.

Owns the timed loops: benchmarks/bench_smoke_overhead.py compares them with a bare loop of the same
calls. Between the two readings of the clock there is only the call. Between two calls there is no
more than in the bare loop either: logging each call, 2 us by itself, made a call of 8 bytes take a
tenth longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Tuple, TypedDict

from ... import test_values
from ...context import RankContext
from .. import barrier
from . import plan
from .plan import Row

if TYPE_CHECKING:
    import torch


# Two arrays of the largest size that the rows need; every size uses their beginnings. A call never
# changes the first, this rank's inputs, so they can still be checked when a result is wrong.
Buffers = Tuple["torch.Tensor", "torch.Tensor"]


class Measured(TypedDict, total=False):
    """What a rank measured in one row: the microseconds of its calls; and of its inputs and results how
    many elements are wrong, and the first (index, value, expected value)."""

    times_usec: list[float]
    inputs: tuple[int, tuple[int, float, int] | None]
    results: tuple[int, tuple[int, float, int] | None]


def measure(context: RankContext, rows: Sequence[Row]) -> tuple[list[Row], list[Measured]]:
    """The rows with the repetitions that they had, the same on all ranks; and what this rank
    measured in each."""
    import torch

    measured_rows: list[Row] = []
    measured: list[Measured] = []
    pending_bytes = all_bytes = sum(row.bytes for row in rows)
    for dtype in dict.fromkeys(row.dtype for row in rows):
        planned = [row for row in rows if row.dtype == dtype]
        inputs = torch.empty(
            max(row.count for row in planned), dtype=getattr(torch, dtype), device=context.device
        )
        buffers = (inputs, torch.empty_like(inputs))
        checks = [_check(context, row, buffers, row is rows[0]) for row in planned]
        # The repetitions for which there is time. All ranks work it out from the same figures,
        # with these rows' share of all bytes that are still to be measured.
        estimate = [[call_s for call_s, _ in checks], context.remaining_s()]
        estimates = context.exchange(f"time of one call, {dtype}", estimate)
        slowest = [max(times) for times in zip(*(times for times, _ in estimates))]
        remaining_s = min(remaining for _, remaining in estimates)
        dtype_bytes = sum(row.bytes for row in planned)
        budget_s = min(
            remaining_s * plan.TIMED_SHARE * dtype_bytes / pending_bytes,
            plan.TIMED_S[context.options.profile] * dtype_bytes / all_bytes,
        )
        pending_bytes -= dtype_bytes
        fitted = plan.fitted(planned, slowest, budget_s)
        for row in fitted:
            times_usec(context, row, buffers, row.warm_up)
        for row, (_, entry) in zip(fitted, checks):
            entry["times_usec"] = times_usec(context, row, buffers, row.iterations)
            measured_rows.append(row)
            measured.append(entry)
    return measured_rows, measured


def _check(
    context: RankContext, row: Row, buffers: Buffers, is_first: bool
) -> tuple[float, Measured]:
    """Seconds of a call; what is wrong of its result and of this rank's inputs."""
    from torch import distributed

    this_rank = context.env.rank
    keys = [
        test_values.key(f"{row.name}/{row.bytes}", rank) for rank in range(context.env.world_size)
    ]
    # The sum of more would not be exact in this type.
    summed = keys[: test_values.EXACT[row.dtype]]
    largest = row.largest if this_rank < len(summed) else 0
    inputs, work = (buffer[: row.count] for buffer in buffers)
    test_values.fill(inputs, keys[this_rank], largest)
    if context.options.fault("wrong-value", this_rank):
        inputs[inputs.numel() // 2] += 1
    work.copy_(inputs)
    collective, call = plan.ALL_REDUCE, partial(distributed.all_reduce, work)
    if is_first and context.options.fault("other-collective", this_rank):
        # Like a program whose ranks took different branches.
        collective, call = "broadcast", partial(distributed.broadcast, work, 0)
    started = time.perf_counter()
    context.begin_collective(collective, f"{row.count} x {row.dtype}")
    call()
    context.synchronize()
    call_s = time.perf_counter() - started
    return call_s, {
        "inputs": test_values.count_wrong(inputs, [keys[this_rank]], largest),
        "results": test_values.count_wrong(work, summed, row.largest),
    }


def times_usec(context: RankContext, row: Row, buffers: Buffers, repeats: int) -> list[float]:
    """Microseconds of each call. All calls of the series are logged as one, before it begins. Each
    begins with the inputs, not with an earlier result."""
    from torch import distributed

    inputs, work = (buffer[: row.count] for buffer in buffers)
    detail = f"{row.count} x {row.dtype}, {repeats} times after a barrier"
    context.begin_collective(plan.ALL_REDUCE, detail)
    wait = barrier.backend_barrier(context)
    timed = on_gpu_usec if context.on_gpu else on_cpu_usec
    times = timed(partial(distributed.all_reduce, work), partial(work.copy_, inputs), wait, repeats)
    return [round(value, 2) for value in times]


def on_cpu_usec(
    call: Callable[[], Any], prepare: Callable[[], Any], wait: Callable[[], Any], repeats: int
) -> list[float]:
    """All ranks wait for each other before each call, so that no rank waits inside it for a slow
    rank."""
    clock = time.perf_counter
    times = []
    for _ in range(repeats):
        prepare()
        wait()
        started = clock()
        call()
        times.append((clock() - started) * 1e6)
    return times


def on_gpu_usec(
    call: Callable[[], Any], prepare: Callable[[], Any], wait: Callable[[], Any], repeats: int
) -> list[float]:
    """Queues all calls, then waits once. Reads the device's own clock between them, not the
    host's."""
    import torch

    pairs = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
        for _ in range(repeats)
    ]
    wait()
    for begin, end in pairs:
        prepare()
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return [float(begin.elapsed_time(end)) * 1e3 for begin, end in pairs]
