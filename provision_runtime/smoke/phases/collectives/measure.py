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
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict

from ....dataclass import frozen
from ... import test_values
from .. import barrier
from . import plan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from ...context import RankContext
    from .plan import Row


class Measured(TypedDict, total=False):
    """What a rank measured in one row: the microseconds of its calls; how many elements are wrong of
    its results and of its inputs; and of both the first (index, value, expected value)."""

    times_usec: list[float]
    wrong: int
    first_wrong: tuple[int, float, int] | None
    inputs_wrong: int
    inputs_first_wrong: tuple[int, float, int] | None


@frozen
class Operation:
    """One row's call. It never changes `inputs`, which is what this rank contributes, so they can
    still be checked when a result is wrong. `prepare` resets the result, so that an earlier one is
    not taken for this call's. `expected`: parts of the result; for each the ranks whose values add
    up to it, and the index of the first value."""

    inputs: torch.Tensor
    prepare: Callable[[], Any]
    call: Callable[[], Any]
    expected: Sequence[tuple[torch.Tensor, Sequence[int], int]]


class Buffers:
    """Two arrays of the largest size that these rows need; every size uses their beginnings."""

    def __init__(self, rows: Sequence[Row], device: str) -> None:
        import torch

        elements = max(row.bytes for row in rows) // plan.ITEM_BYTES[rows[0].dtype]
        self.inputs = torch.empty(elements, dtype=getattr(torch, rows[0].dtype), device=device)
        self.work = torch.empty_like(self.inputs)

    def operation(self, row: Row, rank: int, ranks: int) -> Operation:
        from torch import distributed

        share, whole = row.count, row.count * ranks
        if row.collective == plan.ALL_REDUCE:
            inputs, work = self.inputs[:share], self.work[:share]
            call = partial(distributed.all_reduce, work)
            return Operation(inputs, partial(work.copy_, inputs), call, [(work, range(ranks), 0)])
        if row.collective == plan.ALL_GATHER:
            inputs, work = self.inputs[:share], self.work[:whole]
            call = partial(distributed.all_gather_into_tensor, work, inputs)
            parts = [(part, [sender], 0) for sender, part in enumerate(work.split(share))]
            return Operation(inputs, partial(work.fill_, -1), call, parts)
        inputs, work = self.inputs[:whole], self.work[:share]
        call = partial(distributed.reduce_scatter_tensor, work, inputs)
        return Operation(
            inputs, partial(work.fill_, -1), call, [(work, range(ranks), rank * share)]
        )


def measure(context: RankContext, rows: Sequence[Row]) -> tuple[list[Row], list[Measured]]:
    """The rows with the repetitions that they had, the same on all ranks; and what this rank
    measured in each."""
    measured_rows: list[Row] = []
    measured: list[Measured] = []
    pending_bytes = all_bytes = sum(row.bytes for row in rows)
    for dtype in dict.fromkeys(row.dtype for row in rows):
        planned = [row for row in rows if row.dtype == dtype]
        buffers = Buffers(planned, context.device)
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
            _times_usec(context, row, buffers, row.warm_up)
        for row, (_, entry) in zip(fitted, checks):
            entry["times_usec"] = _times_usec(context, row, buffers, row.iterations)
            measured_rows.append(row)
            measured.append(entry)
    return measured_rows, measured


def _check(
    context: RankContext, row: Row, buffers: Buffers, is_first: bool
) -> tuple[float, Measured]:
    """Seconds of a call; wrong elements of its result and of this rank's inputs."""
    from torch import distributed

    this_rank = context.env.rank
    ranks = range(context.env.world_size)
    keys = [test_values.key(f"{row.name}/{row.bytes}", rank) for rank in ranks]
    operation = buffers.operation(row, this_rank, len(ranks))
    test_values.fill(operation.inputs, keys[this_rank], row.largest)
    if context.options.fault("wrong-value", this_rank):
        operation.inputs[operation.inputs.numel() // 2] += 1
    operation.prepare()
    collective, call = row.collective, operation.call
    if is_first and context.options.fault("other-collective", this_rank):
        # Like a program whose ranks took different branches.
        collective, call = "broadcast", partial(distributed.broadcast, operation.expected[0][0], 0)
    started = time.perf_counter()
    context.begin_collective(collective, f"{row.count} x {row.dtype}")
    call()
    context.synchronize()
    call_s = time.perf_counter() - started
    wrong, first_wrong = 0, None
    for part, senders, start in operation.expected:
        part_keys = [keys[sender] for sender in senders]
        count, first = test_values.count_wrong(part, part_keys, row.largest, start)
        wrong += count
        first_wrong = first_wrong or first
    changed, first_changed = test_values.count_wrong(
        operation.inputs, [keys[this_rank]], row.largest
    )
    return call_s, {
        "wrong": wrong,
        "first_wrong": first_wrong,
        "inputs_wrong": changed,
        "inputs_first_wrong": first_changed,
    }


def _times_usec(context: RankContext, row: Row, buffers: Buffers, repeats: int) -> list[float]:
    operation = buffers.operation(row, context.env.rank, context.env.world_size)
    return [round(value, 2) for value in time_operation(context, row, operation, repeats)]


def time_operation(
    context: RankContext, row: Row, operation: Operation, repeats: int
) -> list[float]:
    """Microseconds of each call. All calls of the series are logged as one, before it begins."""
    detail = f"{row.count} x {row.dtype}, {repeats} times after a barrier"
    context.begin_collective(row.collective, detail)
    wait = barrier.backend_barrier(context)
    timed = on_gpu_usec if context.on_gpu else on_cpu_usec
    return timed(operation.call, operation.prepare, wait, repeats)


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
