"""Smoke reports -> the values of the collectives, and those of each rank. Pure.

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
WAIT_MEANING = "the others wait for the rank that waits least"
# The factors from the median, up or down, at which the shade of a rank's value gets stronger.
SHADE_FACTORS = (1.05, 1.10, 1.25, 1.50)


@dataclass(frozen=True, kw_only=True)
class Point:
    """The measurements of one size. busbw_gb_s: None where it does not apply (one rank)."""

    bytes: int
    time_us: float
    p99_us: float | None
    algbw_gb_s: float | None
    busbw_gb_s: float | None
    expected_gb_s: float | None
    slowest_rank: int | None
    judged: str  # a text: how the value compares with the expected one


@dataclass(frozen=True, kw_only=True)
class MeasuredCurve:
    """One collective with one element type, measured by one run of the test."""

    measurement: int  # index into the page's measurements
    collective: str
    dtype: str
    points: tuple[Point, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RankColumn:
    """One quantity that every rank measured, and the median of all ranks."""

    group: str
    title: str
    unit: str
    meaning: str
    median: float


@dataclass(frozen=True, kw_only=True)
class RankTable:
    """The values of every rank of one run."""

    measurement: int
    columns: tuple[RankColumn, ...]
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]  # of each rank; empty if all ranks are on one host
    rows: tuple[tuple[float, ...], ...]
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
        result.append(
            MeasuredCurve(
                measurement=measurement,
                collective=collective,
                dtype=dtype,
                points=tuple(map(_point, rows)),
                notes=tuple(_notes(data, reference)),
            )
        )
    return result


def _point(row: PhaseData) -> Point:
    return Point(
        bytes=row["bytes"],
        time_us=row["time_us_max"],
        p99_us=row.get("time_us_p99"),
        algbw_gb_s=row.get("algbw_gb_s"),
        busbw_gb_s=row.get("busbw_gb_s"),
        expected_gb_s=row.get("expected_gb_s"),
        slowest_rank=row.get("slowest_rank"),
        judged=row.get("judged") or "",
    )


def _notes(data: PhaseData, reference: Any) -> list[str]:
    """What the bandwidths are compared with, and what was not measured."""
    notes = [data["note"]] if data.get("note") else []
    if isinstance(reference, dict):
        details = [reference[key] for key in ("condition", "source") if reference.get(key)]
        suffix = f" ({'; '.join(details)})" if details else ""
        notes.append(f"Expected: {reference['name']}{suffix}.")
    return notes


def rank_table(measurement: int, report: Report) -> RankTable | None:
    """The values of each rank, or None if the report has no values by rank."""
    world_size = report.world_size
    measured = [(column, values) for column, values in _columns(report) if len(values) > 1]
    columns = tuple(column for column, values in measured if len(values) == world_size)
    if not columns:
        return None
    rows = list(zip(*(values for _, values in measured if len(values) == world_size)))
    distances = [max(map(factor, row, columns)) for row in rows]
    furthest = sorted(range(world_size), key=lambda rank: -distances[rank])[:MAX_RANKS]
    ranks = tuple(sorted(furthest))
    host_by_rank = {}
    for facts in phase_data(report, "facts").get("ranks", []):
        host_by_rank[facts.get("rank")] = facts.get("host")
    if len(set(host_by_rank.values())) < 2:
        host_by_rank = {}
    return RankTable(
        measurement=measurement,
        columns=columns,
        ranks=ranks,
        hosts=tuple(host_by_rank.get(rank) or "" for rank in ranks),
        rows=tuple(rows[rank] for rank in ranks),
        hidden=world_size - len(ranks),
    )


def factor(value: float, column: RankColumn) -> float:
    """Between a value and the median, whichever is larger: at least 1, and 1 if one is 0."""
    if not value or not column.median:
        return 1.0
    ratio = value / column.median
    return max(ratio, 1 / ratio)


def shade(value: float, column: RankColumn) -> str:
    """The class of a value in the style sheet: h1 to h4 above the median, l1 to l4 below it."""
    level = sum(factor(value, column) >= limit for limit in SHADE_FACTORS)
    side = "h" if value > column.median else "l"
    return f"{side}{level}" if level else ""


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


def format_value(value: float, unit: str) -> str:
    """Three digits, and times in the unit that fits."""
    if unit == "us":
        if value >= 1e6:
            return f"{value / 1e6:.3g} s"
        return f"{value / 1e3:.3g} ms" if value >= 1e3 else f"{value:.3g} µs"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
