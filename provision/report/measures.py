"""Smoke reports -> the curves of the collectives, and the values of each rank. Pure.

Only this module knows the keys of the phases' data. The page shows only what a report holds.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provision_runtime.report.model import Report
from provision_runtime.report.text import format_bytes

# Each phase defines its own.
PhaseData = Mapping[str, Any]

# A table with more rows is unreadable: it shows the ranks furthest from the median, and counts the
# others.
MAX_RANKS = 64
# The limits of provision_runtime/smoke/bandwidth.py; a test compares them.
FINE, BAD = 0.9, 0.8
WAIT_MEANING = "the others wait for the rank that waits least"


@dataclass(frozen=True, kw_only=True)
class Band:
    """The expected busbw of one size, in GB/s.

    Below `fine` the test warns, below `bad` it fails; both are None if the size is too small to
    be judged.
    """

    bytes: int
    expected: float
    fine: float | None
    bad: float | None


@dataclass(frozen=True, kw_only=True)
class Point:
    """The measurements of one size. busbw_gb_s: None where it does not apply (one rank)."""

    bytes: int
    time_us: float
    p99_us: float | None
    algbw_gb_s: float | None
    busbw_gb_s: float | None
    slowest_rank: int | None
    judged: str  # a text: how the value compares with the expected one


@dataclass(frozen=True, kw_only=True)
class MeasuredCurve:
    """One collective with one element type, measured by one run of the test."""

    measurement: int  # index into the page's measurements
    collective: str
    dtype: str
    ranks: int
    points: tuple[Point, ...]
    expected: tuple[Band, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RankValue:
    """One value of one rank. ratio: to the median of all ranks; None if the median is 0."""

    value: float
    ratio: float | None


@dataclass(frozen=True, kw_only=True)
class RankColumn:
    """One quantity that every rank measured."""

    group: str
    title: str
    unit: str
    meaning: str
    median: float


@dataclass(frozen=True, kw_only=True)
class RankTable:
    """The values of every rank of one run, and the median of all ranks."""

    measurement: int
    columns: tuple[RankColumn, ...]
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]  # of each rank; empty if all ranks are on one host
    rows: tuple[tuple[RankValue, ...], ...]
    hidden: int = 0  # ranks left out, which are nearer to the median


def phase_data(report: Report, name: str) -> PhaseData:
    """The data of a phase; empty if it did not run."""
    return next((phase.data for phase in report.phases if phase.name == name), {})


def curves(measurement: int, report: Report) -> list[MeasuredCurve]:
    """A curve for each collective and element type, in the order in which they were measured."""
    data = phase_data(report, "collectives")
    rows_by_curve: dict[tuple[str, str], list[PhaseData]] = {}
    for row in data.get("rows", []):
        rows_by_curve.setdefault((row["collective"], row["dtype"]), []).append(row)

    result = []
    for (collective, dtype), rows in rows_by_curve.items():
        rows.sort(key=lambda row: int(row["bytes"]))
        reference = data.get("expected", {}).get(collective)
        judged_from = reference["from_bytes"] if isinstance(reference, dict) else None
        points, bands = [], []
        for row in rows:
            point = Point(
                bytes=row["bytes"],
                time_us=row["time_us_max"],
                p99_us=row.get("time_us_p99"),
                algbw_gb_s=row.get("algbw_gb_s"),
                busbw_gb_s=row.get("busbw_gb_s"),
                slowest_rank=row.get("slowest_rank"),
                judged=row.get("judged") or "",
            )
            points.append(point)
            if row.get("expected_gb_s"):
                bands.append(_band(row, judged_from))
        result.append(
            MeasuredCurve(
                measurement=measurement,
                collective=collective,
                dtype=dtype,
                ranks=report.world_size,
                points=tuple(points),
                expected=tuple(bands),
                notes=tuple(_notes(data, reference, rows)),
            )
        )
    return result


def _band(row: PhaseData, judged_from: int | None) -> Band:
    size, expected = row["bytes"], row["expected_gb_s"]
    if judged_from is None or size < judged_from:
        return Band(bytes=size, expected=expected, fine=None, bad=None)
    return Band(bytes=size, expected=expected, fine=FINE * expected, bad=BAD * expected)


def _notes(data: PhaseData, reference: Any, rows: Sequence[PhaseData]) -> list[str]:
    """The reference of the bandwidths, or why there was none."""
    notes = []
    if data.get("note"):
        notes.append(data["note"])
    if isinstance(reference, dict):
        details = [reference[key] for key in ("condition", "source") if reference.get(key)]
        suffix = f" ({'; '.join(details)})" if details else ""
        notes.append(f"Expected: {reference['name']}{suffix}.")
    else:
        judgments = {row.get("judged") for row in rows}
        judgment = judgments.pop()
        if not judgments and judgment:
            notes.append(f"Bandwidth: {judgment}.")
    return notes


def not_measured(report: Report) -> list[str]:
    """Collectives and types that could not be measured, each with the reason."""
    refused = phase_data(report, "collectives").get("refused", {})
    return [f"{name}: {reason}" for name, reason in refused.items()]


def rank_table(measurement: int, report: Report) -> RankTable | None:
    """The values of each rank, or None if the report has no values by rank."""
    world_size = report.world_size
    if world_size < 2:
        return None
    columns, values_by_column = [], []
    for column, values in _columns(report):
        if len(values) == world_size:
            columns.append(column)
            values_by_column.append(values)
    if not columns:
        return None
    rows = []
    for rank in range(world_size):
        row = []
        for column, values in zip(columns, values_by_column):
            ratio = values[rank] / column.median if column.median else None
            row.append(RankValue(value=values[rank], ratio=ratio))
        rows.append(tuple(row))
    ranks = _furthest_ranks(rows)
    host_by_rank = {}
    for facts in phase_data(report, "facts").get("ranks", []):
        host_by_rank[facts.get("rank")] = facts.get("host")
    if len(set(host_by_rank.values())) < 2:
        host_by_rank = {}
    return RankTable(
        measurement=measurement,
        columns=tuple(columns),
        ranks=tuple(ranks),
        hosts=tuple(host_by_rank.get(rank) or "" for rank in ranks),
        rows=tuple(rows[rank] for rank in ranks),
        hidden=len(rows) - len(ranks),
    )


def gpus(report: Report) -> str:
    """The GPUs of all ranks by name; empty without GPUs."""
    names: Counter[str] = Counter()
    for facts in phase_data(report, "facts").get("ranks", []):
        if facts.get("gpu_name"):
            names[facts["gpu_name"]] += 1
    return ", ".join(f"{count} x {name}" for name, count in names.items())


def _columns(report: Report) -> list[tuple[RankColumn, Sequence[float]]]:
    waits = phase_data(report, "barrier").get("p50_us_by_rank", [])
    columns = [_column("barrier", "wait", "us", WAIT_MEANING, waits)]
    compute = phase_data(report, "compute")
    for name, unit in compute.get("units", {}).items():
        rates = [rank[name] for rank in compute.get("ranks", []) if name in rank]
        columns.append(_column("compute", name.replace("_", " "), unit, "", rates))
    for row in phase_data(report, "collectives").get("rows", []):
        times = row.get("time_us_by_rank")
        if row["collective"] == "all_reduce" and times:
            group, title = f"all_reduce of {row['dtype']}", format_bytes(row["bytes"])
            columns.append(_column(group, title, "us", "", times))
    return columns


def _column(
    group: str, title: str, unit: str, meaning: str, values: Sequence[float]
) -> tuple[RankColumn, Sequence[float]]:
    median = statistics.median(values) if values else 0.0
    column = RankColumn(group=group, title=title, unit=unit, meaning=meaning, median=median)
    return column, values


def _furthest_ranks(rows: Sequence[Sequence[RankValue]]) -> list[int]:
    """The MAX_RANKS ranks furthest from the median in any column, or all ranks. Sorted."""

    def distance(rank: int) -> float:
        """The largest factor between a value of the rank and the median, at least 1."""
        largest = 1.0
        for value in rows[rank]:
            if value.ratio:
                largest = max(largest, value.ratio, 1 / value.ratio)
        return largest

    ranks = sorted(range(len(rows)), key=distance, reverse=True)
    return sorted(ranks[:MAX_RANKS])


def format_time(microseconds: float) -> str:
    if microseconds >= 1e6:
        return f"{microseconds / 1e6:.3g} s"
    if microseconds >= 1e3:
        return f"{microseconds / 1e3:.3g} ms"
    return f"{microseconds:.3g} µs"


def format_rate(value: float) -> str:
    """Three digits, or all before the point; a power of ten only for the very small."""
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 0.001 or value == 0:
        return f"{value:.3g}"
    return f"{value:.0e}".replace("e-0", "e-")
