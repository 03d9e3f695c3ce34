"""All ranks' measurements as one table, and the wrong values among them. Pure.

`measured` is what every rank measured (`measure.Sweep.measure`): by rank, then by row.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from ....report.text import format_bytes, format_count
from ... import measurement
from ...outcome import Finding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...bandwidth import Line
    from .measure import Measured
    from .plan import Row


def table(rows: Sequence[Row], measured: Sequence[Sequence[Measured]]) -> list[Line]:
    return [_line(row, entries) for row, entries in zip(rows, zip(*measured))]


def _line(row: Row, entries: Sequence[Measured]) -> Line:
    """One row over all ranks. Bandwidth is by the slowest rank's median."""
    times_by_rank = [entry["times_usec"] for entry in entries]
    medians = [measurement.median(times) for times in times_by_rank]
    iterations = measurement.slowest_of_ranks(times_by_rank)
    slowest_s = max(medians) / 1e6
    busbw = measurement.busbw_gb_s(row.collective, row.bytes, slowest_s, len(medians))
    return {
        "collective": row.collective,
        "dtype": row.dtype,
        "bytes": row.bytes,
        "count": row.count,
        "iterations": row.iterations,
        "time_us_max": round(max(medians), 2),
        "time_us_mean": round(statistics.fmean(medians), 2),
        "time_us_min": round(min(iterations), 2),
        "time_us_p99": round(measurement.percentile(iterations, 99), 2),
        "time_us_by_rank": [round(median, 2) for median in medians],
        "slowest_rank": medians.index(max(medians)),
        "algbw_gb_s": float(f"{measurement.algbw_gb_s(row.bytes, slowest_s):.6g}"),
        "busbw_gb_s": None if busbw is None else float(f"{busbw:.6g}"),
        "wrong": sum(entry["wrong"] for entry in entries),
    }


def wrong_value_findings(
    rows: Sequence[Row], measured: Sequence[Sequence[Measured]]
) -> tuple[Finding, ...]:
    """The ranks whose own inputs changed: wrong results follow from that. Otherwise the ranks that
    received wrong results."""
    changed, wrong = [], []
    for rank, by_row in enumerate(measured):
        bad = [index for index, entry in enumerate(by_row) if entry["inputs_wrong"]]
        if bad:
            entry = by_row[bad[0]]
            count, first = entry["inputs_wrong"], entry["inputs_first_wrong"]
            message = _describe_wrong(rows, bad, count, "before they were sent", first)
            changed.append(Finding("wrong-value", message, (rank,)))
        bad = [index for index, entry in enumerate(by_row) if entry["wrong"]]
        if bad:
            entry = by_row[bad[0]]
            count, first = entry["wrong"], entry["first_wrong"]
            where = "in the result, although every rank sent the right values"
            message = _describe_wrong(rows, bad, count, where, first)
            wrong.append(Finding("wrong-result", message, (rank,)))
    return tuple(changed or wrong)


def _describe_wrong(
    rows: Sequence[Row],
    bad: Sequence[int],
    count: int,
    where: str,
    first: Sequence[float] | None,
) -> str:
    """The first of the bad rows, how many more there are, and the row's first wrong element."""
    row = rows[bad[0]]
    text = f"{row.collective} of {format_bytes(row.bytes)} in {row.dtype}"
    if len(bad) > 1:
        text += f" (and {format_count(len(bad) - 1, 'more row')})"
    text += f": {format_count(count, 'wrong element')} {where}"
    if first is None:
        return text
    index, value, expected = first
    return f"{text}; element {index} is {value:g} instead of {expected}"


def summary(lines: Sequence[Line]) -> str:
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
