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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from ... import test_values
from .. import barrier
from . import operations, plan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...context import RankContext
    from .operations import Buffers, Operation, Participants
    from .plan import Row

# The share of the phase's remaining time that may be spent on timed calls and their warm-up. The
# rest is for checks, which cannot be fewer, and for calls that are slower than the first.
TIMED_SHARE = 0.5


class Measured(TypedDict, total=False):
    """What a rank measured in one row: the microseconds of its calls; how many elements are wrong of
    its results and of its inputs; and of both the first (index, value, expected value)."""

    call_s: float
    times_usec: list[float]
    wrong: int
    first_wrong: tuple[int, float, int] | None
    inputs_wrong: int
    inputs_first_wrong: tuple[int, float, int] | None


@dataclass
class Sweep:
    context: RankContext
    participants: Participants
    # The fault other-collective replaces the first all_reduce that is checked.
    is_first_all_reduce: bool = True

    def measure(self, rows: Sequence[Row]) -> tuple[list[Row], list[Measured]]:
        """The rows with the repetitions that they had, the same on all ranks; and what this rank
        measured in each."""
        results: dict[Row, tuple[Row, Measured]] = {}
        pending_bytes = sum(row.bytes for row in rows)
        for dtype in dict.fromkeys(row.dtype for row in rows):
            planned = [row for row in rows if row.dtype == dtype]
            buffers = operations.Buffers(planned, dtype, self.context.device)
            entries = [self._check(row, buffers) for row in planned]
            dtype_bytes = sum(row.bytes for row in planned)
            # The repetitions for which there is time. All ranks work it out from the same
            # figures. share: these rows' share of all bytes that are still to be measured.
            estimate = [[entry.pop("call_s") for entry in entries], self.context.remaining_s()]
            estimates = self.context.exchange(f"time of one call, {planned[0].dtype}", estimate)
            slowest = [max(times) for times in zip(*(times for times, _ in estimates))]
            remaining_s = min(remaining for _, remaining in estimates)
            rows_of_dtype = plan.fitted(
                planned, slowest, remaining_s * TIMED_SHARE * (dtype_bytes / pending_bytes)
            )
            pending_bytes -= dtype_bytes
            for row in rows_of_dtype:
                self._times_usec(row, buffers, row.warm_up)
            for plan_row, row, entry in zip(planned, rows_of_dtype, entries):
                entry["times_usec"] = self._times_usec(row, buffers, row.iterations)
                results[plan_row] = (row, entry)
        in_order = [results[row] for row in rows]
        return [row for row, _ in in_order], [entry for _, entry in in_order]

    def is_unsupported(self, row: Row) -> bool:
        """Tries the call: whether the backend lacks the collective, or lacks it for this type.

        The backend refuses before anything is sent.
        """
        buffers = operations.Buffers([row], row.dtype, self.context.device)
        buffers.inputs.zero_()
        try:
            operation = operations.build(row, buffers, self.participants)
            self._log_call(row)
            operation.call()
        except Exception as error:
            if not operations.is_refusal(error):
                raise
            return True
        return False

    def _check(self, row: Row, buffers: Buffers) -> Measured:
        """Wrong elements of the result and of this rank's inputs, and the first of each."""
        ranks, rank = range(self.participants.size), self.participants.rank
        keys = [test_values.key(f"{row.name}/{row.bytes}", rank) for rank in ranks]
        operation = operations.build(row, buffers, self.participants)
        test_values.fill(operation.inputs, keys[rank], row.largest)
        if self.context.options.fault("wrong-value", rank):
            operation.inputs[operation.inputs.numel() // 2] += 1
        operation.prepare()
        started = time.perf_counter()
        self._call_checked(row, operation)
        self.context.synchronize()
        call_s = time.perf_counter() - started
        wrong, first = operations.count_wrong(operation, keys, row.largest)
        changed, first_changed = test_values.count_wrong(
            operation.inputs, [keys[rank]], row.largest
        )
        return {
            "call_s": call_s,
            "wrong": wrong,
            "first_wrong": first,
            "inputs_wrong": changed,
            "inputs_first_wrong": first_changed,
        }

    def _call_checked(self, row: Row, operation: Operation) -> None:
        if self.is_first_all_reduce and row.collective == "all_reduce":
            self.is_first_all_reduce = False
            if self.context.options.fault("other-collective", self.participants.rank):
                # Like a program whose ranks took different branches.
                from torch import distributed

                self.context.begin_collective("broadcast", f"{row.count} x {row.dtype}")
                distributed.broadcast(operation.expected[0].part, operations.ROOT)
                return
        self._log_call(row)
        operation.call()

    def _times_usec(self, row: Row, buffers: Buffers, repeats: int) -> list[float]:
        operation = operations.build(row, buffers, self.participants)
        return [round(value, 2) for value in self.time_operation(row, operation, repeats)]

    def time_operation(self, row: Row, operation: Operation, repeats: int) -> list[float]:
        """Microseconds of each call. All calls of the series are logged as one, before it begins."""
        self._log_call(row, f", {repeats} times after a barrier")
        wait = barrier.backend_barrier(self.context)
        timed = on_gpu_usec if self.context.on_gpu else on_cpu_usec
        return timed(operation.call, operation.prepare, wait, repeats)

    def _log_call(self, row: Row, note: str = "") -> None:
        self.context.begin_collective(row.collective, f"{row.count} x {row.dtype}{note}")


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
