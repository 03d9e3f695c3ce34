"""Phase compute: how fast does each rank multiply and copy, and does one fall behind the others?

A rank is judged against the median of the ranks, never against a table: we cannot know which CPU or
clock is right. Every rate is the best of several windows. A window is longer than the period of a
CPU quota (0.1 s), so that a throttled rank cannot look fast between two throttlings. If a rank
looks slow, all ranks measure again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from .. import measurement
from ..outcome import Finding, Outcome, combine

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..context import RankContext

MIB = 1 << 20
WINDOW_S = 0.12
WINDOWS = {"quick": 3, "default": 5, "full": 8}
# Side of the matrices: large enough to be compute-bound, small enough to finish on one slow core.
SIDE = {"cpu": 384, "cuda": 8192}
COPIED_BYTES = {"cpu": 32 * MIB, "cuda": 1024 * MIB}
# Share of the median. GPUs of one model differ by a few percent; CPUs share cores, caches and
# clocks with everything else that runs.
SLOW = {"cpu": 1 / 3, "cuda": 0.85}
MATMUL, COPY = "matmul", "copy"


def run(context: RankContext) -> Outcome:
    rank_cpus = context.exchange("who computes", measurement.own_cpus(context.env.host))
    reason = why_not_judged(rank_cpus, context.on_gpu)
    rates = context.exchange("compute", _measure(context))
    kind = _kind(context)
    if not reason and stragglers(rates, SLOW[kind]):
        repeated = context.exchange("compute again", _measure(context))
        rates = [best_rates(first, second) for first, second in zip(rates, repeated)]
    return _conclude(rates, kind, reason) if context.env.rank == 0 else Outcome()


def merge(outcomes: Sequence[Outcome]) -> Outcome:
    return combine(outcomes)


def why_not_judged(rank_cpus: Sequence[dict[str, Any]], on_gpu: bool) -> str:
    """Why ranks cannot be compared; empty if they can. The speed of ranks that take turns on a core
    depends on the scheduler."""
    if len(rank_cpus) == 1:
        return "not judged: there is only one rank"
    if not on_gpu and measurement.ranks_per_core(rank_cpus) > 1:
        return f"not judged: {measurement.describe_cpu_share(rank_cpus)}"
    return ""


def stragglers(rates: Sequence[dict[str, float]], slow: float) -> dict[str, list[int]]:
    """For each measured operation, the ranks below this share of the median of all."""
    result = {}
    for operation in rates[0]:
        values = [rate[operation] for rate in rates]
        limit = median(values) * slow
        slow_ranks = [rank for rank, value in enumerate(values) if value < limit]
        if slow_ranks:
            result[operation] = slow_ranks
    return result


def median(values: Sequence[float]) -> float:
    """Of an even number of values, halfway between the two middle ones."""
    ordered = sorted(values)
    half = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[half]
    return (ordered[half - 1] + ordered[half]) / 2


def best_rates(first: dict[str, float], second: dict[str, float]) -> dict[str, float]:
    return {operation: max(rate, second[operation]) for operation, rate in first.items()}


def _conclude(rates: Sequence[dict[str, float]], kind: str, reason: str) -> Outcome:
    medians = {}
    for operation in rates[0]:
        medians[operation] = median([rate[operation] for rate in rates])
    findings = []
    if not reason:
        for operation, ranks in stragglers(rates, SLOW[kind]).items():
            for rank in ranks:
                rate = rates[rank][operation]
                message = (
                    f"{operation.replace('_', ' ')} runs at {rate:.4g} {_unit(operation)}, "
                    f"the median of the ranks is {medians[operation]:.4g}"
                )
                findings.append(Finding("compute-straggler", message, (rank,)))
    data = {
        "units": {operation: _unit(operation) for operation in medians},
        "ranks": [{"rank": rank, **_rounded(rate)} for rank, rate in enumerate(rates)],
        "median": _rounded(medians),
        "slow_below": round(SLOW[kind], 4),
        "judged": reason or "against the median of the ranks",
    }
    parts = []
    for operation, value in medians.items():
        parts.append(f"{operation.replace('_', ' ')} {value:.4g} {_unit(operation)}")
    message = f"per rank (median): {', '.join(parts)}"
    if reason:
        message += f"; {reason}"
    return Outcome(message, tuple(findings), data)


def _rounded(rates: dict[str, float]) -> dict[str, float]:
    return {operation: round(value, 4) for operation, value in rates.items()}


def _unit(operation: str) -> str:
    return "GB/s" if operation == COPY else "TFLOP/s"


def _kind(context: RankContext) -> str:
    return "cuda" if context.on_gpu else "cpu"


def _measure(context: RankContext) -> dict[str, float]:
    """TFLOP/s and GB/s, the best of several windows."""
    kind, windows = _kind(context), WINDOWS[context.options.profile]
    types = ("float32", "bfloat16") if context.on_gpu else ("float32",)
    rates = {}
    for dtype in types:
        rates[f"{MATMUL}_{dtype}"] = _matmul_tflop_s(context, SIDE[kind], dtype, windows)
    rates[COPY] = _copy_gb_s(context, COPIED_BYTES[kind], windows)
    return rates


def _matmul_tflop_s(context: RankContext, side: int, dtype: str, windows: int) -> float:
    import torch

    matrix = torch.ones(side, side, dtype=getattr(torch, dtype), device=context.device)
    result = torch.empty_like(matrix)
    per_second = _calls_per_second(context, lambda: torch.mm(matrix, matrix, out=result), windows)
    return per_second * 2 * side**3 / 1e12


def _copy_gb_s(context: RankContext, size: int, windows: int) -> float:
    """Bytes read and written: a copy moves each byte twice, as NVIDIA and STREAM count."""
    import torch

    source = torch.zeros(size, dtype=torch.uint8, device=context.device)
    target = torch.empty_like(source)
    per_second = _calls_per_second(context, lambda: target.copy_(source), windows)
    return per_second * 2 * size / 1e9


def _calls_per_second(context: RankContext, work: Callable[[], Any], windows: int) -> float:
    """In the best window."""
    work()
    return max(_window(context, work) for _ in range(windows))


def _window(context: RankContext, work: Callable[[], Any]) -> float:
    calls, started = 0, time.perf_counter()
    _synchronize(context)
    while time.perf_counter() - started < WINDOW_S:
        work()
        calls += 1
        _synchronize(context)
    return calls / (time.perf_counter() - started)


def _synchronize(context: RankContext) -> None:
    """Returns when the work queued on a GPU is complete."""
    if context.on_gpu:
        import torch

        torch.cuda.synchronize()
