"""Smoke reports -> what is drawn of them: curves of the collectives, and what each rank measured. Pure.

The only module that knows the keys of the phases' data; what is absent there is absent on the page.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provision_runtime.report.text import format_bytes

# A page with more rows than this is no longer read; those furthest from the median are shown, and how many are not is said.
MOST_RANKS = 64
# As the test judges (inside/smoke/phases/collectives/judge.py); a test compares them.
FINE, BAD = 0.9, 0.8
WAITS = "the others wait for the rank that waits least"


@dataclass(frozen=True, kw_only=True)
class Band:
    """What was to be expected of one size, in GB/s of busbw. fine, bad: below them it warns and fails; None where that size is too
    small to be judged by."""

    bytes: int
    expected: float
    fine: float | None
    bad: float | None


@dataclass(frozen=True, kw_only=True)
class Point:
    """One size. busbw_gb_s: None where it is not applicable (one rank)."""

    bytes: int
    time_us: float
    p99_us: float | None
    algbw_gb_s: float | None
    busbw_gb_s: float | None
    slowest_rank: int | None
    judged: str  # beside what was expected, in words


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One collective with one element type, by one run of the test."""

    measurement: int  # place among the page's measurements
    collective: str
    dtype: str
    ranks: int
    points: tuple[Point, ...]
    expected: tuple[Band, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One value of one rank. ratio: to the median of all ranks, None where that is 0."""

    value: float
    ratio: float | None


@dataclass(frozen=True, kw_only=True)
class Column:
    """One thing that every rank measured."""

    group: str
    title: str
    unit: str
    meaning: str
    median: float


@dataclass(frozen=True, kw_only=True)
class RankTable:
    """What every rank of one run measured, beside the median of all."""

    measurement: int
    columns: tuple[Column, ...]
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]  # of each of them; empty where all are on one
    rows: tuple[tuple[Cell, ...], ...]
    hidden: int = 0  # ranks that are not shown, nearer to the median than those that are


def phase_data(report: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return next((phase["data"] for phase in report["phases"] if phase["name"] == name), {})


def curves(measurement: int, report: Mapping[str, Any]) -> Iterator[Curve]:
    """A curve for each collective and element type, in the order in which they were measured."""
    data = phase_data(report, "collectives")
    rows = data.get("rows", [])
    for collective, dtype in dict.fromkeys((row["collective"], row["dtype"]) for row in rows):
        own = sorted(
            (row for row in rows if (row["collective"], row["dtype"]) == (collective, dtype)),
            key=lambda row: row["bytes"],
        )
        known = data.get("expected", {}).get(collective)
        judged_from = known["from_bytes"] if isinstance(known, dict) else None
        yield Curve(
            measurement=measurement,
            collective=collective,
            dtype=dtype,
            ranks=report["world_size"],
            points=tuple(map(_point, own)),
            expected=tuple(_band(row, judged_from) for row in own if row.get("expected_gb_s")),
            notes=tuple(_notes(data, known, own)),
        )


def _point(row: Mapping[str, Any]) -> Point:
    return Point(
        bytes=row["bytes"],
        time_us=row["time_us_max"],
        p99_us=row.get("time_us_p99"),
        algbw_gb_s=row.get("algbw_gb_s"),
        busbw_gb_s=row.get("busbw_gb_s"),
        slowest_rank=row.get("slowest_rank"),
        judged=row.get("judged") or "",
    )


def _band(row: Mapping[str, Any], judged_from: int | None) -> Band:
    wanted = row["expected_gb_s"]
    is_judged = judged_from is not None and row["bytes"] >= judged_from
    return Band(
        bytes=row["bytes"],
        expected=wanted,
        fine=FINE * wanted if is_judged else None,
        bad=BAD * wanted if is_judged else None,
    )


def _notes(data: Mapping[str, Any], known: Any, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What the bandwidths were judged by, or why they were not."""
    if data.get("note"):
        yield data["note"]
    if isinstance(known, dict):
        about = "; ".join(filter(None, (known.get("condition"), known.get("source"))))
        yield f"Expected: {known['name']}{f' ({about})' if about else ''}."
    answers = {row.get("judged") for row in rows}
    if len(answers) == 1 and not isinstance(known, dict) and all(answers):
        yield f"Bandwidth: {answers.pop()}."


def not_measured(report: Mapping[str, Any]) -> list[str]:
    """Collectives and types that were to be measured and could not be, each with the reason."""
    return [
        f"{name}: {reason}"
        for name, reason in phase_data(report, "collectives").get("refused", {}).items()
    ]


def rank_table(measurement: int, report: Mapping[str, Any]) -> RankTable | None:
    """What each rank measured, or None where the report says nothing by rank."""
    measured = [
        (column, values)
        for column, values in _columns(report)
        if len(values) == report["world_size"] > 1
    ]
    if not measured:
        return None
    cells = [
        [_cell(values[rank], column.median) for column, values in measured]
        for rank in range(report["world_size"])
    ]
    shown = _most_telling(cells)
    return RankTable(
        measurement=measurement,
        columns=tuple(column for column, _ in measured),
        ranks=tuple(shown),
        hosts=tuple(_host(report, rank) for rank in shown),
        rows=tuple(tuple(cells[rank]) for rank in shown),
        hidden=len(cells) - len(shown),
    )


def _host(report: Mapping[str, Any], rank: int) -> str:
    """Where there are several."""
    ranks = phase_data(report, "facts").get("ranks", [])
    known = {one.get("rank"): one.get("host") for one in ranks}
    return (known.get(rank) or "") if len(set(known.values())) > 1 else ""


def gpus(report: Mapping[str, Any]) -> str:
    """The GPUs of all ranks by name, or nothing."""
    names = Counter(
        one["gpu_name"]
        for one in phase_data(report, "facts").get("ranks", [])
        if one.get("gpu_name")
    )
    return ", ".join(f"{count} x {name}" for name, count in names.items())


def _columns(report: Mapping[str, Any]) -> Iterator[tuple[Column, Sequence[float]]]:
    waits = phase_data(report, "barrier").get("p50_us_by_rank", [])
    yield _column("barrier", "wait", "us", WAITS, waits)
    compute = phase_data(report, "compute")
    for what, unit in compute.get("units", {}).items():
        yield _column(
            "compute",
            what.replace("_", " "),
            unit,
            "",
            [rank[what] for rank in compute.get("ranks", []) if what in rank],
        )
    for row in phase_data(report, "collectives").get("rows", []):
        if row["collective"] == "all_reduce" and row.get("time_us_by_rank"):
            yield _column(
                f"all_reduce of {row['dtype']}",
                format_bytes(row["bytes"]),
                "us",
                "",
                row["time_us_by_rank"],
            )


def _column(
    group: str, title: str, unit: str, meaning: str, values: Sequence[float]
) -> tuple[Column, Sequence[float]]:
    return Column(
        group=group,
        title=title,
        unit=unit,
        meaning=meaning,
        median=statistics.median(values) if values else 0.0,
    ), values


def _cell(value: float, median: float) -> Cell:
    return Cell(value=value, ratio=value / median if median else None)


def _most_telling(cells: Sequence[Sequence[Cell]]) -> list[int]:
    """All ranks, or of very many those furthest from the median in anything; in the order of ranks."""
    furthest = sorted(
        range(len(cells)), key=lambda rank: -max(_distance(cell) for cell in cells[rank])
    )
    return sorted(furthest[:MOST_RANKS])


def _distance(cell: Cell) -> float:
    return max(cell.ratio, 1 / cell.ratio) if cell.ratio else 1.0


def time_in_words(microseconds: float) -> str:
    if microseconds >= 1e6:
        return f"{microseconds / 1e6:.3g} s"
    return f"{microseconds / 1e3:.3g} ms" if microseconds >= 1e3 else f"{microseconds:.3g} µs"


def rate_in_words(value: float) -> str:
    """Three digits, or all before the point: never a power of ten, but for the very small."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.001 or value == 0 else f"{value:.0e}".replace("e-0", "e-")
