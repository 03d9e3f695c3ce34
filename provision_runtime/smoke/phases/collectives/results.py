"""All ranks' measurements as one table, and the wrong values among them. Pure.

`measured` is what each rank measured (`measure.Sweep.measure`): by rank, then by row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....report.text import format_bytes, format_count
from ... import measurement
from ...outcome import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .plan import Row

    Measured = Sequence[Sequence[Mapping[str, Any]]]


def table(rows: Sequence[Row], measured: Measured) -> list[dict[str, Any]]:
    return [_line(row, [by_row[index] for by_row in measured]) for index, row in enumerate(rows)]


def _line(row: Row, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One row over all ranks. Its top-level figures are those out of place."""
    out_of_place = _figures(row, [entry.get("out_of_place") for entry in entries])
    in_place = _figures(row, [entry.get("in_place") for entry in entries])
    assert out_of_place is not None
    out_of_place["wrong"] = sum(entry["wrong"][0] or 0 for entry in entries)
    if in_place is not None:
        in_place["wrong"] = sum(entry["wrong"][1] or 0 for entry in entries)
    return {
        "collective": row.collective,
        "dtype": row.dtype,
        "bytes": row.bytes,
        "count": row.count,
        "iterations": row.iterations,
        **out_of_place,
        "in_place": in_place,
        "time_us_by_rank": [
            round(measurement.median(entry["out_of_place"]), 2) for entry in entries
        ],
    }


def _figures(row: Row, times_us: Sequence[Sequence[float] | None]) -> dict[str, Any] | None:
    """None for a placement that was not measured. Bandwidth is by the slowest rank's median."""
    times_by_rank = [times for times in times_us if times is not None]
    if not times_by_rank:
        return None
    medians = [measurement.median(times) for times in times_by_rank]
    iterations = measurement.slowest_each(times_by_rank)
    slowest_s = max(medians) / 1e6
    busbw = measurement.busbw_gb_s(row.collective, row.bytes, slowest_s, len(times_by_rank))
    return {
        "time_us_max": round(max(medians), 2),
        "time_us_mean": round(measurement.mean(medians), 2),
        "time_us_min": round(min(iterations), 2),
        "time_us_p99": round(measurement.percentile(iterations, 99), 2),
        "slowest_rank": medians.index(max(medians)),
        "algbw_gb_s": round(measurement.algbw_gb_s(row.bytes, slowest_s), 6),
        "busbw_gb_s": None if busbw is None else round(busbw, 6),
    }


def wrong_value_findings(rows: Sequence[Row], measured: Measured) -> tuple[Finding, ...]:
    """The ranks whose own inputs changed: wrong results follow from that. Otherwise the ranks that
    received wrong results."""
    findings: list[Finding] = []
    for rank, by_row in enumerate(measured):
        bad = [index for index, entry in enumerate(by_row) if entry["inputs_wrong"]]
        if bad:
            entry = by_row[bad[0]]
            values = _describe_wrong(
                entry["inputs_wrong"], "before they were sent", entry["inputs_first_wrong"]
            )
            findings.append(Finding("wrong-value", _location(rows, bad) + values, (rank,)))
    if findings:
        return tuple(findings)
    for rank, by_row in enumerate(measured):
        bad = [index for index, entry in enumerate(by_row) if any(entry["wrong"])]
        if bad:
            entry = by_row[bad[0]]
            count = max(filter(None, entry["wrong"]))
            where = "in the result, although every rank sent the right values"
            values = _describe_wrong(count, where, entry["first_wrong"])
            findings.append(Finding("wrong-result", _location(rows, bad) + values, (rank,)))
    return tuple(findings)


def _location(rows: Sequence[Row], bad: Sequence[int]) -> str:
    """The first of the bad rows, and how many more there are."""
    row = rows[bad[0]]
    text = f"{row.collective} of {format_bytes(row.bytes)} in {row.dtype}"
    if len(bad) > 1:
        text += f" (and {format_count(len(bad) - 1, 'more row')})"
    return f"{text}: "


def _describe_wrong(count: int, where: str, first: tuple[int, float, int]) -> str:
    index, value, expected = first
    elements = format_count(count, "wrong element")
    return f"{elements} {where}; element {index} is {value:g} instead of {expected}"


def summary(lines: Sequence[Mapping[str, Any]]) -> str:
    """The largest all_reduce, and how much else was exact."""
    main = []
    additional = set()
    for line in lines:
        if (line["collective"], line["dtype"]) == ("all_reduce", "float32"):
            main.append(line)
        else:
            additional.add((line["collective"], line["dtype"]))
    text = f"{len(main)} sizes exact on all ranks"
    if additional:
        text += f", as are {len(additional)} other collectives and types"
    largest = main[-1]
    text += (
        f"; {format_bytes(largest['bytes'])} in {measurement.format_time(largest['time_us_max'])}"
    )
    if largest["busbw_gb_s"] is None:
        return f"{text}, busbw not applicable"
    return f"{text}, busbw {largest['busbw_gb_s']:.2f} GB/s"
