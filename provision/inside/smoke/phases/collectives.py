"""Phase collectives: exact sums at every size on every rank, and how fast they come.

Every element is compared with what it must be. Times are the slowest rank's median; bandwidths as nccl-tests defines
them. The call is in place: the buffer is filled again before each, outside the time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import timing, values
from ..outcome import Finding, Outcome, fold
from .barrier import meet

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from ..session import Session

KIB, MIB = 1 << 10, 1 << 20
ELEMENT_BYTES = 4
# Up to here an operation is all latency, and cheap enough to repeat.
LATENCY_BYTES = 256 * KIB
SIZES = {
    ("cpu", "quick"): (8, 32 * KIB, 1 * MIB),
    ("cpu", "default"): (8, 1 * KIB, 32 * KIB, 256 * KIB, 2 * MIB, 16 * MIB),
    ("cuda", "quick"): (8, 256 * KIB, 16 * MIB, 256 * MIB),
    ("cuda", "default"): (8, 1 * KIB, 32 * KIB, 256 * KIB, 1 * MIB, 16 * MIB, 128 * MIB, 512 * MIB, 1024 * MIB),
}
# Three buffers of the largest size live at once; more than this share of the free memory is not ours to take.
MEMORY_SHARE = 0.05


@dataclass(frozen=True)
class Effort:
    warm_up: int
    latency: int
    bandwidth: int


EFFORT = {"quick": Effort(2, 20, 5), "default": Effort(5, 100, 20), "full": Effort(5, 100, 20)}


def run(session: Session) -> Outcome:
    measured = [_measure(session, size) for size in _sizes(session)]
    wrong = [entry for entry in measured if entry["wrong"]]
    data = {"sizes": measured}
    return Outcome(findings=(_wrong(wrong[0]),), data=data) if wrong else Outcome(data=data)


def merge(outcomes: Sequence[Outcome]) -> Outcome:
    data = summarize([outcome.data["sizes"] for outcome in outcomes])
    liars = [rank for rank, o in enumerate(outcomes) if any(entry["own_wrong"] for entry in o.data["sizes"])]
    if liars:
        what = "it sent other values than its own: its memory changed them before"
        return Outcome(_in_words(data), (Finding("wrong-value", what, tuple(liars)),), data)
    return Outcome(_in_words(data), fold(outcomes).findings, data)


def summarize(by_rank_sizes: Sequence[Sequence[dict[str, Any]]]) -> dict[str, Any]:
    ranks = len(by_rank_sizes)
    rows = [_row([sizes[place] for sizes in by_rank_sizes]) for place in range(len(by_rank_sizes[0]))]
    note = None if ranks > 1 else "busbw is not applicable to one rank"
    return {"dtype": "float32", "op": "sum", "ranks": ranks, "sizes": rows, "note": note}


def _row(entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One size over all ranks."""
    size, ranks = entries[0]["bytes"], len(entries)
    medians = [timing.median(entry["times_us"]) for entry in entries]
    slowest_s = max(medians) / 1e6
    busbw = timing.all_reduce_busbw_gb_s(size, slowest_s, ranks)
    return {
        "bytes": size,
        "count": size // ELEMENT_BYTES,
        "iterations": len(entries[0]["times_us"]),
        "time_us_max": round(max(medians), 2),
        "time_us_mean": round(timing.mean(medians), 2),
        "time_us_p99": round(timing.percentile(timing.slowest_each([e["times_us"] for e in entries]), 99), 2),
        "slowest_rank": medians.index(max(medians)),
        "algbw_gb_s": round(timing.algbw_gb_s(size, slowest_s), 6),
        "busbw_gb_s": None if busbw is None else round(busbw, 6),
        "wrong": sum(entry["wrong"] for entry in entries),
    }


def _sizes(session: Session) -> list[int]:
    sizes = SIZES["cuda" if session.on_gpu else "cpu", "quick" if session.options.quick else "default"]
    most = _most_bytes(session)
    return [size for size in sizes if size <= most]


def _most_bytes(session: Session) -> float:
    """The same on all ranks, or they would call different collectives."""
    if not session.on_gpu:
        return float("inf")
    import torch

    free = torch.cuda.mem_get_info()[0]
    return float(min(session.exchange("free memory", free))) * MEMORY_SHARE


def _measure(session: Session, size: int) -> dict[str, Any]:
    import torch

    source = torch.empty(size // ELEMENT_BYTES, dtype=torch.float32, device=session.device)
    work = torch.empty_like(source)
    wrong, own_wrong, first = _check(session, source, work)
    effort = EFFORT[session.options.profile]
    repeats = effort.latency if size <= LATENCY_BYTES else effort.bandwidth
    times = [_timed(session, source, work) for _ in range(effort.warm_up + repeats)][effort.warm_up :]
    return {"bytes": size, "times_us": times, "wrong": wrong, "own_wrong": own_wrong, "first": first}


def _check(session: Session, source: torch.Tensor, work: torch.Tensor) -> tuple[int, int, Any]:
    """Wrong elements of the result, wrong elements of what this rank itself sent, and the first wrong one."""
    turn = f"all_reduce/{source.numel()}"
    keys = [values.key(session.options.seed, turn, rank) for rank in range(session.place.world_size)]
    own = keys[session.place.rank]
    values.fill(source, own)
    if session.options.fault("wrong-value", session.place.rank):
        source[source.numel() // 2] += 1
    work.copy_(source)
    _announce(session, work)
    _reduce(work)
    wrong, first = values.wrong(work, keys)
    own_wrong = values.wrong(source, [own])[0] if wrong else 0
    return wrong, own_wrong, first


def _announce(session: Session, work: torch.Tensor) -> None:
    session.enter("all_reduce", f"{work.numel()} x {str(work.dtype).replace('torch.', '')}")


def _reduce(work: torch.Tensor) -> None:
    from torch import distributed

    distributed.all_reduce(work)


def _timed(session: Session, source: torch.Tensor, work: torch.Tensor) -> float:
    """Microseconds of one call. The buffer is filled again first: sums of sums would soon overflow."""
    work.copy_(source)
    meet(session)
    _announce(session, work)
    return _timed_on_gpu(work) if session.on_gpu else _timed_on_cpu(work)


def _timed_on_cpu(work: torch.Tensor) -> float:
    started = time.perf_counter()
    _reduce(work)
    return (time.perf_counter() - started) * 1e6


def _timed_on_gpu(work: torch.Tensor) -> float:
    import torch

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    _reduce(work)
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3


def _wrong(entry: dict[str, Any]) -> Finding:
    index, found, expected = entry["first"]
    what = f"{entry['wrong']} wrong of {entry['bytes'] // ELEMENT_BYTES} at {timing.in_words(entry['bytes'])}"
    return Finding("wrong-value", f"{what}, element {index} is {found:g} instead of {expected}")


def _in_words(data: dict[str, Any]) -> str:
    largest = data["sizes"][-1]
    speed = "busbw not applicable" if largest["busbw_gb_s"] is None else f"busbw {largest['busbw_gb_s']:.2f} GB/s"
    time_taken = timing.time_in_words(largest["time_us_max"])
    size = timing.in_words(largest["bytes"])
    return f"{len(data['sizes'])} sizes exact on all ranks; {size} in {time_taken}, {speed}"
