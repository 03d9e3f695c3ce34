"""Our figures in the shape of nccl-tests' own JSON (`-J FILE`), so that what reads that reads ours. Pure.

The shape is that of file version 2 (nccl-tests 2.19: src/util.cu), texts for true and false and padded roots included.
One document is one collective in one type, as one run of nccl-tests is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ... import timing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .plan import Row

FILE_VERSION = 2
TYPES = {"float32": "float", "float16": "half", "bfloat16": "bfloat16"}
TIME_FORMAT = "%Y-%m-%d %H:%M:%S"
# What our operation is called there.
PROGRAMS = {"all_to_all": "alltoall", "send_recv": "sendrecv"}
SUMMED = ("all_reduce", "reduce_scatter")


@dataclass(frozen=True)
class Device:
    rank: int
    pid: int
    hostname: str
    device: int
    device_hex: str
    device_info: str


@dataclass(frozen=True)
class Run:
    """What is the same for all documents of a run. `environment`: only NCCL's and Gloo's own variables."""

    start_time: str
    end_time: str
    arguments: Sequence[str]
    environment: Sequence[str]
    nccl_version: str | None
    devices: Sequence[Device]
    on_gpu: bool


def file_name(collective: str, dtype: str) -> str:
    """nccl-tests.json is the all_reduce in float32."""
    extra = "" if collective == "all_reduce" else f"-{collective}"
    return f"nccl-tests{extra}{'' if dtype == 'float32' else f'-{dtype}'}.json"


def document(
    run: Run, rows: Sequence[Row], answers: Sequence[Sequence[Mapping[str, Any]]]
) -> dict[str, Any]:
    """Of rows of one collective and type; `answers` by rank, then by row."""
    results = [
        _result(row, [answer[place] for answer in answers]) for place, row in enumerate(rows)
    ]
    wrong = sum(sum(filter(None, entry["wrong"])) for answer in answers for entry in answer)
    return {
        "version": FILE_VERSION,
        "start_time": run.start_time,
        "args": list(run.arguments),
        "env": list(run.environment),
        "nccl_version": nccl_code(run.nccl_version),
        "config": _config(run, rows),
        "results": results,
        "out_of_bounds": {"count": wrong, "okay": _truth(wrong == 0)},
        "average_bus_bandwidth": {"bandwidth": _average(results), "okay": "unchecked"},
        "errors": [],
        "end_time": run.end_time,
    }


def nccl_code(version: str | None) -> int:
    """2.20.5 is 22005, as NCCL_VERSION_CODE; 0 where NCCL was not used."""
    if version is None:
        return 0
    major, minor, patch = (int(part) for part in [*version.split("."), "0", "0"][:3])
    return major * 10000 + minor * 100 + patch


def _config(run: Run, rows: Sequence[Row]) -> dict[str, Any]:
    sizes = [row.bytes for row in rows]
    return {
        "nthreads": 1,
        "ngpus": 1,
        "minimum_bytes": min(sizes),
        "maximum_bytes": max(sizes),
        "step_factor": _factor(sizes),
        "warmup_iters": max(row.warm_up for row in rows),
        "iterations": max(row.iterations for row in rows),
        "aggregated_iterations": 1,
        "validation": 1,
        "graph": 0,
        "blocking_collectives": _truth(not run.on_gpu),
        "per_iter_timing": _truth(True),
        "parallel_init": _truth(False),
        "devices": [
            {"rank": d.rank, "group": 0, **{k: v for k, v in vars(d).items() if k != "rank"}}
            for d in run.devices
        ],
    }


def _factor(sizes: Sequence[int]) -> int:
    """Between neighboring sizes; 0 where it is not one and the same."""
    factors = {sizes[place] / sizes[place - 1] for place in range(1, len(sizes))}
    return int(factors.pop()) if len(factors) == 1 else 0


def _result(row: Row, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    root = 0 if row.collective == "broadcast" else -1
    return {
        "size": row.bytes,
        "count": row.count,
        "type": TYPES[row.dtype],
        "redop": "sum" if row.collective in SUMMED else "none",
        "root": f"{root:6d}",
        **_placement(
            row,
            "out_of_place",
            [entry.get("out_of_place") for entry in entries],
            [entry["wrong"][0] for entry in entries],
        ),
        **_placement(
            row,
            "in_place",
            [entry.get("in_place") for entry in entries],
            [entry["wrong"][1] for entry in entries],
        ),
        "actual_iterations": row.iterations,
        "experiment_name": f"{PROGRAMS.get(row.collective, row.collective)}_perf",
    }


def _placement(
    row: Row, name: str, times: Sequence[Sequence[float] | None], wrong: Sequence[int | None]
) -> dict[str, Any]:
    given = [
        [float(value) for value in by_iteration]
        for by_iteration in times
        if by_iteration is not None
    ]
    if not given:
        return {name: None}
    whole = timing.slowest_each(given)
    seconds = timing.mean(whole) / 1e6
    figures = {
        "time": timing.mean(whole),
        "alg_bw": timing.algbw_gb_s(row.bytes, seconds),
        "bus_bw": timing.busbw_gb_s(row.collective, row.bytes, seconds, len(given)) or 0.0,
        "nwrong": float(sum(filter(None, wrong))),
    }
    return {name: figures, f"{name}_per_iter": _per_iteration(whole, given)}


def _per_iteration(whole: Sequence[float], by_rank: Sequence[Sequence[float]]) -> dict[str, Any]:
    average, deviation = timing.mean(whole), timing.deviation(whole)
    return {
        "min_us": min(whole),
        "max_us": max(whole),
        "avg_us": average,
        "p50_us": timing.percentile(whole, 50),
        "p95_us": timing.percentile(whole, 95),
        "p99_us": timing.percentile(whole, 99),
        "stdev_us": deviation,
        "cv_pct": deviation / average * 100 if average else 0.0,
        "times_us": list(whole),
        **(
            {"per_process_max_times_us": [list(times) for times in by_rank]}
            if len(by_rank) > 1
            else {}
        ),
    }


def _average(results: Sequence[Mapping[str, Any]]) -> float:
    """Over all sizes and both placements, as nccl-tests counts: so of different sweeps it cannot be compared."""
    rates = [
        result[name]["bus_bw"]
        for result in results
        for name in ("out_of_place", "in_place")
        if result[name]
    ]
    return timing.mean(rates)


def _truth(value: bool) -> str:
    return "true" if value else "false"
