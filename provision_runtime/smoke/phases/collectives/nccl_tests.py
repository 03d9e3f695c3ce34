"""Our figures in the shape of nccl-tests' own JSON (`-J FILE`), so that tools for those files
also read ours. Pure.

The shape is that of file version 2 (nccl-tests 2.19: src/util.cu), texts for true and false and
padded roots included. One document is one collective in one type, as one run of nccl-tests is.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ... import measurement
from .plan import SUMMED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .plan import Row

    Entries = Sequence[Mapping[str, Any]]

FILE_VERSION = 2
TYPES = {"float32": "float", "float16": "half", "bfloat16": "bfloat16"}
TIME_FORMAT = "%Y-%m-%d %H:%M:%S"
# nccl-tests' names of our operations, where they differ.
PROGRAMS = {"all_to_all": "alltoall", "send_recv": "sendrecv"}


@dataclass(frozen=True)
class Device:
    rank: int
    pid: int
    hostname: str
    device: int
    device_hex: str
    device_info: str


@dataclass(frozen=True)
class RunInfo:
    """What is the same in all documents of a run. `environment`: only variables of NCCL and
    Gloo."""

    start_time: str
    end_time: str
    arguments: Sequence[str]
    environment: Sequence[str]
    nccl_version: str | None
    devices: Sequence[Device]
    on_gpu: bool


def file_name(collective: str, dtype: str) -> str:
    """nccl-tests.json is all_reduce in float32."""
    name = "nccl-tests"
    if collective != "all_reduce":
        name += f"-{collective}"
    if dtype != "float32":
        name += f"-{dtype}"
    return f"{name}.json"


def document(run_info: RunInfo, rows: Sequence[Row], measured: Sequence[Entries]) -> dict[str, Any]:
    """The rows must be of one collective and type; `measured` is by rank, then by row."""
    results = []
    for index, row in enumerate(rows):
        results.append(_result(row, [by_row[index] for by_row in measured]))
    wrong = 0
    for by_row in measured:
        for entry in by_row:
            wrong += sum(filter(None, entry["wrong"]))
    return {
        "version": FILE_VERSION,
        "start_time": run_info.start_time,
        "args": list(run_info.arguments),
        "env": list(run_info.environment),
        "nccl_version": nccl_code(run_info.nccl_version),
        "config": _config(run_info, rows),
        "results": results,
        "out_of_bounds": {"count": wrong, "okay": _bool_text(wrong == 0)},
        "average_bus_bandwidth": {"bandwidth": _average(results), "okay": "unchecked"},
        "errors": [],
        "end_time": run_info.end_time,
    }


def nccl_code(version: str | None) -> int:
    """2.20.5 is 22005, as in NCCL_VERSION_CODE; 0 if NCCL was not used."""
    if version is None:
        return 0
    major, minor, patch = (int(part) for part in [*version.split("."), "0", "0"][:3])
    return major * 10000 + minor * 100 + patch


def _config(run_info: RunInfo, rows: Sequence[Row]) -> dict[str, Any]:
    sizes = [row.bytes for row in rows]
    # Between neighboring sizes; 0 if it differs.
    factors = {larger / smaller for smaller, larger in zip(sizes, sizes[1:])}
    step_factor = int(factors.pop()) if len(factors) == 1 else 0
    devices = []
    for device in run_info.devices:
        fields = asdict(device)
        devices.append({"rank": fields.pop("rank"), "group": 0, **fields})
    return {
        "nthreads": 1,
        "ngpus": 1,
        "minimum_bytes": min(sizes),
        "maximum_bytes": max(sizes),
        "step_factor": step_factor,
        "warmup_iters": max(row.warm_up for row in rows),
        "iterations": max(row.iterations for row in rows),
        "aggregated_iterations": 1,
        "validation": 1,
        "graph": 0,
        "blocking_collectives": _bool_text(not run_info.on_gpu),
        "per_iter_timing": _bool_text(True),
        "parallel_init": _bool_text(False),
        "devices": devices,
    }


def _result(row: Row, entries: Entries) -> dict[str, Any]:
    root = 0 if row.collective == "broadcast" else -1
    return {
        "size": row.bytes,
        "count": row.count,
        "type": TYPES[row.dtype],
        "redop": "sum" if row.collective in SUMMED else "none",
        "root": f"{root:6d}",
        **_placement(row, "out_of_place", entries, [entry["wrong"][0] for entry in entries]),
        **_placement(row, "in_place", entries, [entry["wrong"][1] for entry in entries]),
        "actual_iterations": row.iterations,
        "experiment_name": f"{PROGRAMS.get(row.collective, row.collective)}_perf",
    }


def _placement(
    row: Row, name: str, entries: Entries, wrong: Sequence[int | None]
) -> dict[str, Any]:
    times_by_rank = []
    for entry in entries:
        if entry.get(name) is not None:
            times_by_rank.append([float(value) for value in entry[name]])
    if not times_by_rank:
        return {name: None}
    times_us = measurement.slowest_each(times_by_rank)
    seconds = measurement.mean(times_us) / 1e6
    busbw = measurement.busbw_gb_s(row.collective, row.bytes, seconds, len(times_by_rank))
    figures = {
        "time": measurement.mean(times_us),
        "alg_bw": measurement.algbw_gb_s(row.bytes, seconds),
        "bus_bw": busbw or 0.0,
        "nwrong": float(sum(filter(None, wrong))),
    }
    return {name: figures, f"{name}_per_iter": _per_iteration(times_us, times_by_rank)}


def _per_iteration(
    times_us: Sequence[float], times_by_rank: Sequence[Sequence[float]]
) -> dict[str, Any]:
    average, deviation = measurement.mean(times_us), measurement.deviation(times_us)
    figures = {
        "min_us": min(times_us),
        "max_us": max(times_us),
        "avg_us": average,
        "p50_us": measurement.percentile(times_us, 50),
        "p95_us": measurement.percentile(times_us, 95),
        "p99_us": measurement.percentile(times_us, 99),
        "stdev_us": deviation,
        "cv_pct": deviation / average * 100 if average else 0.0,
        "times_us": list(times_us),
    }
    if len(times_by_rank) > 1:
        figures["per_process_max_times_us"] = [list(times) for times in times_by_rank]
    return figures


def _average(results: Sequence[Mapping[str, Any]]) -> float:
    """Over all sizes and both placements, as nccl-tests averages: do not compare it between
    different sweeps."""
    rates = []
    for result in results:
        for name in ("out_of_place", "in_place"):
            if result[name]:
                rates.append(result[name]["bus_bw"])
    return measurement.mean(rates)


def _bool_text(value: bool) -> str:
    return "true" if value else "false"
