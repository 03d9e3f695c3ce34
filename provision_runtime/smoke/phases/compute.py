"""Phase compute: does each rank multiply without error, how fast does it multiply and copy, and does
one fall behind the others?

A rank is judged against the median of the ranks. Every rate is the best of several windows. If a rank
looks slow, all ranks measure again. On CPUs the time is the processor's own: what else runs on
a rank's core is no fault of it, and differs between cores.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import starmap
from typing import Any, Dict

from ...facts import libraries
from ...report.text import format_count
from .. import measurement
from ..context import RankContext
from ..outcome import Finding, Outcome
from . import exact_product

MIB = 1 << 20
WINDOW_S = 0.12
WINDOWS = {"quick": 3, "default": 5, "full": 8}
TYPES = {"cpu": ("float32",), "cuda": ("float32", "bfloat16")}
# Side of the matrices: large enough to be compute-bound, small enough to finish on one slow core.
SIDE = {"cpu": 384, "cuda": 8192}
COPIED_BYTES = {"cpu": 32 * MIB, "cuda": 1024 * MIB}
# Share of the median. GPUs of one model differ by a few percent; CPUs share cores, caches and
# clocks with everything else that runs.
SLOW = {"cpu": 1 / 3, "cuda": 0.85}
# By operation.
Rates = Dict[str, float]


def run(context: RankContext) -> Outcome:
    kind = "cuda" if context.on_gpu else "cpu"
    gpus = context.exchange("GPUs that compute", _gpu(context))
    reason = why_not_judged(context.cores, gpus)
    wrong_before = _wrong_elements(context, kind)
    rates = context.exchange("compute", _measure(context, kind))
    if not reason and stragglers(rates, SLOW[kind]):
        repeated = context.exchange("compute again", _measure(context, kind))
        rates = [
            {name: max(rate, second[name]) for name, rate in first.items()}
            for first, second in zip(rates, repeated)
        ]
    wrong = context.exchange("products", wrong_before + _wrong_elements(context, kind))
    if context.env.rank != 0:
        return Outcome()
    findings = [] if reason else stragglers(rates, SLOW[kind])
    for rank, count in enumerate(wrong):
        if count:
            message = f"{format_count(count, 'element')} wrong in matrix products"
            findings.append(Finding("wrong-product", message, (rank,)))
    medians = _medians(rates)
    data = {
        "ranks": [{"rank": rank, **rate} for rank, rate in enumerate(rates)],
        "median": medians,
        "judged": reason or "against the median of the ranks",
        "wrong_elements": wrong,
    }
    parts = list(starmap(_described, medians.items()))
    message = f"per rank (median): {', '.join(parts)}"
    if reason:
        message += f"; {reason}"
    return Outcome(message, tuple(findings), data)


def why_not_judged(ranks: Sequence[measurement.RankCores], gpus: Sequence[str]) -> str:
    """Why ranks cannot be compared; empty if they can. The speed of ranks that take turns on a core
    or a GPU depends on the scheduler."""
    if len(ranks) == 1:
        return "not judged: there is only one rank"
    if any(gpus):
        return "not judged: ranks share a GPU" if len(set(gpus)) < len(gpus) else ""
    if measurement.ranks_per_core(ranks) > 1:
        return f"not judged: {measurement.describe_cpu_share(ranks)}"
    return ""


def stragglers(rates: Sequence[Rates], slow: float) -> list[Finding]:
    """For each measured operation, the ranks below this share of the median of all."""
    findings = []
    for operation, median in _medians(rates).items():
        for rank, rates_of_rank in enumerate(rates):
            rate = rates_of_rank[operation]
            if rate < median * slow:
                message = f"{_described(operation, rate)}; the median of the ranks is {median:.4g}"
                findings.append(Finding("compute-straggler", message, (rank,)))
    return findings


def _medians(rates: Sequence[Rates]) -> Rates:
    return {name: statistics.median(rate[name] for rate in rates) for name in rates[0]}


def _described(operation: str, rate: float) -> str:
    unit = "TFLOP/s" if operation.startswith("matmul") else "GB/s"
    return f"{operation.replace('_', ' ')} {rate:.4g} {unit}"


def _gpu(context: RankContext) -> str:
    """The UUID of this rank's GPU; its rank if the driver does not say it; empty on CPUs."""
    if context.gpu is None:
        return ""
    return libraries.gpu_uuid(context.gpu) or f"of rank {context.env.rank}"


def _wrong_elements(context: RankContext, kind: str) -> int:
    """Of a product of each type that is measured."""
    import torch

    count = 0
    for dtype in TYPES[kind]:
        left, right, product = exact_product.matrices(
            SIDE[kind], getattr(torch, dtype), context.device
        )
        if context.options.fault("wrong-product", context.env.rank):
            product[SIDE[kind] // 2, SIDE[kind] // 3] += 1
        count += exact_product.wrong_elements(left, right, product)
    return count


def _measure(context: RankContext, kind: str) -> Rates:
    """TFLOP/s and GB/s, the best of several windows; on CPUs per second of processor time."""
    import torch

    side, size = SIDE[kind], COPIED_BYTES[kind]
    # Each operation, and how much a call does in its unit.
    work: dict[str, tuple[Callable[[], Any], float]] = {}
    for dtype in TYPES[kind]:
        # Random values: those of a matrix of ones toggle no bits, and take less power.
        matrix = torch.randn(side, side, device=context.device).to(getattr(torch, dtype))
        product = partial(torch.mm, matrix, matrix, out=torch.empty_like(matrix))
        work[f"matmul_{dtype}"] = (product, 2 * side**3 / 1e12)
    source = torch.zeros(size, dtype=torch.uint8, device=context.device)
    # A copy moves each byte twice, as NVIDIA and STREAM count.
    work["copy"] = (partial(torch.empty_like(source).copy_, source), 2 * size / 1e9)
    windows = WINDOWS[context.options.profile]
    return {
        name: round(_calls_per_second(context, call, windows) * amount, 4)
        for name, (call, amount) in work.items()
    }


def _calls_per_second(context: RankContext, work: Callable[[], Any], windows: int) -> float:
    clock = time.perf_counter if context.on_gpu else time.process_time
    work()
    best = 0.0
    for _ in range(windows):
        calls, started = 0, time.perf_counter()
        clock_started = clock()
        context.synchronize()
        while time.perf_counter() - started < WINDOW_S:
            work()
            calls += 1
            context.synchronize()
        best = max(best, calls / (clock() - clock_started))
    return best
