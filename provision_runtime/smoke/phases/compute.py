"""Phase compute: how fast each rank multiplies and copies, and whether one of them falls behind the others.

A rank is judged against the median of the ranks, never against a table: which CPU or clock is right is not ours to know.
Every rate is the best of several windows. A window is longer than the period of a CPU quota (0.1 s), so that a rank that
is throttled cannot look fast between two throttlings. Who looks slow is measured again, together with all others.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from .. import cpu_share
from ..outcome import Finding, Outcome, fold

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..session import Session

MIB = 1 << 20
WINDOW_S = 0.12
WINDOWS = {"quick": 3, "default": 5, "full": 8}
# Side of the matrices: enough to be compute-bound, little enough to end on one slow core.
SIDE = {"cpu": 384, "cuda": 8192}
COPIED_BYTES = {"cpu": 32 * MIB, "cuda": 1024 * MIB}
# Of the median. GPUs of one kind differ by a few percent; CPUs share cores, caches and clocks with whatever else runs.
SLOW = {"cpu": 1 / 3, "cuda": 0.85}
MATMUL, COPY = "matmul", "copy"


def run(session: Session) -> Outcome:
    seats = session.exchange("who computes", cpu_share.own_seat(session.place.host))
    reason = unjudgeable(seats, session.on_gpu)
    rates = session.exchange("compute", _measure(session))
    kind = _kind(session)
    if not reason and stragglers(rates, SLOW[kind]):
        again = session.exchange("compute again", _measure(session))
        rates = [better(*pair) for pair in zip(rates, again)]
    return _conclude(rates, kind, reason) if session.place.rank == 0 else Outcome()


def merge(outcomes: Sequence[Outcome]) -> Outcome:
    return fold(outcomes)


def unjudgeable(seats: Sequence[dict[str, Any]], on_gpu: bool) -> str:
    """Why ranks cannot be compared, if so: those that take turns on a core are as fast as the scheduler lets them."""
    if len(seats) == 1:
        return "one rank has nobody to be compared with"
    if not on_gpu and cpu_share.per_core(seats) > 1:
        return f"not judged: {cpu_share.in_words(seats)}"
    return ""


def stragglers(rates: Sequence[dict[str, float]], slow: float) -> dict[str, list[int]]:
    """By what is measured, the ranks below this share of the median of all."""
    found = {}
    for what in rates[0]:
        limit = middle([rate[what] for rate in rates]) * slow
        found[what] = [rank for rank, rate in enumerate(rates) if rate[what] < limit]
    return {what: ranks for what, ranks in found.items() if ranks}


def middle(values: Sequence[float]) -> float:
    """The median; of two, halfway between them."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def better(first: dict[str, float], second: dict[str, float]) -> dict[str, float]:
    return {what: max(rate, second[what]) for what, rate in first.items()}


def _conclude(rates: Sequence[dict[str, float]], kind: str, reason: str) -> Outcome:
    slow = {} if reason else stragglers(rates, SLOW[kind])
    medians = {what: middle([rate[what] for rate in rates]) for what in rates[0]}
    findings = tuple(
        _straggler(what, rank, rates[rank][what], medians[what])
        for what, ranks in slow.items()
        for rank in ranks
    )
    data = {
        "units": {what: _unit(what) for what in medians},
        "ranks": [
            {"rank": rank, **{what: round(value, 4) for what, value in rate.items()}}
            for rank, rate in enumerate(rates)
        ],
        "median": {what: round(value, 4) for what, value in medians.items()},
        "slow_below": round(SLOW[kind], 4),
        "judged": reason or "against the median of the ranks",
    }
    said = ", ".join(
        f"{what.replace('_', ' ')} {value:.4g} {_unit(what)}" for what, value in medians.items()
    )
    return Outcome(f"per rank (median): {said}{f'; {reason}' if reason else ''}", findings, data)


def _straggler(what: str, rank: int, rate: float, median: float) -> Finding:
    told = f"{what.replace('_', ' ')} runs at {rate:.4g} {_unit(what)}, the median of the ranks is {median:.4g}"
    return Finding("compute-straggler", told, (rank,))


def _unit(what: str) -> str:
    return "GB/s" if what == COPY else "TFLOP/s"


def _kind(session: Session) -> str:
    return "cuda" if session.on_gpu else "cpu"


def _measure(session: Session) -> dict[str, float]:
    """TFLOP/s and GB/s: best of several windows."""
    kind, windows = _kind(session), WINDOWS[session.options.profile]
    types = ("float32", "bfloat16") if session.on_gpu else ("float32",)
    rates = {f"{MATMUL}_{dtype}": _matmul(session, SIDE[kind], dtype, windows) for dtype in types}
    return {**rates, COPY: _copy(session, COPIED_BYTES[kind], windows)}


def _matmul(session: Session, side: int, dtype: str, windows: int) -> float:
    import torch

    one = torch.ones(side, side, dtype=getattr(torch, dtype), device=session.device)
    result = torch.empty_like(one)
    per_second = _rate(session, lambda: torch.mm(one, one, out=result), windows)
    return per_second * 2 * side**3 / 1e12


def _copy(session: Session, size: int, windows: int) -> float:
    """Bytes read and written: a copy moves each twice, as NVIDIA and STREAM count."""
    import torch

    source = torch.zeros(size, dtype=torch.uint8, device=session.device)
    target = torch.empty_like(source)
    per_second = _rate(session, lambda: target.copy_(source), windows)
    return per_second * 2 * size / 1e9


def _rate(session: Session, work: Callable[[], Any], windows: int) -> float:
    """Calls per second in the best window."""
    work()
    return max(_window(session, work) for _ in range(windows))


def _window(session: Session, work: Callable[[], Any]) -> float:
    calls, started = 0, time.perf_counter()
    _finish(session)
    while time.perf_counter() - started < WINDOW_S:
        work()
        calls += 1
        _finish(session)
    return calls / (time.perf_counter() - started)


def _finish(session: Session) -> None:
    """What was queued on a GPU is done when this returns."""
    if session.on_gpu:
        import torch

        torch.cuda.synchronize()
