"""All ranks' measurements as one table, and the wrong values among them. Pure.

`measured` is what every rank measured (`measure.measure`): by rank, then by row.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ....report.text import format_bytes, format_count
from ... import measurement
from ...bandwidth import Line
from ...outcome import Finding
from .measure import Measured
from .plan import ALL_REDUCE, Row


def table(rows: Sequence[Row], measured: Sequence[Sequence[Measured]]) -> list[Line]:
    return list(map(_line, rows, zip(*measured)))


def _line(row: Row, entries: Sequence[Measured]) -> Line:
    """One row over all ranks. Bandwidth is by the slowest rank's median."""
    times_by_rank = [entry["times_usec"] for entry in entries]
    medians = list(map(statistics.median_low, times_by_rank))
    iterations = list(map(max, zip(*times_by_rank)))
    slowest_s = max(medians) / 1e6
    busbw = measurement.busbw_gb_s(row.bytes, slowest_s, len(medians))
    return {
        "collective": ALL_REDUCE,
        "dtype": row.dtype,
        "bytes": row.bytes,
        "count": row.count,
        "iterations": row.iterations,
        "time_us_max": round(max(medians), 2),
        "time_us_mean": round(statistics.fmean(medians), 2),
        "time_us_p99": round(measurement.percentile(iterations, 99), 2),
        "time_us_by_rank": [round(median, 2) for median in medians],
        "slowest_rank": medians.index(max(medians)),
        "algbw_gb_s": float(f"{measurement.algbw_gb_s(row.bytes, slowest_s):.6g}"),
        "busbw_gb_s": None if busbw is None else float(f"{busbw:.6g}"),
        "wrong": sum(entry["results"][0] for entry in entries),
    }


def wrong_value_findings(
    rows: Sequence[Row], measured: Sequence[Sequence[Mapping[str, Any]]]
) -> list[Finding]:
    """The ranks whose own inputs changed: wrong results follow from that. Otherwise the ranks that
    received wrong results."""
    findings: list[Finding] = []
    for finding_id, values, where in (
        ("wrong-value", "inputs", "before they were sent"),
        ("wrong-result", "results", "although every rank sent the right values"),
    ):
        for rank, by_row in enumerate(measured):
            bad = [(row, entry[values]) for row, entry in zip(rows, by_row) if entry[values][0]]
            if bad:
                row, (count, (index, value, expected)) = bad[0]
                more = f" (and {format_count(len(bad) - 1, 'more row')})" if len(bad) > 1 else ""
                message = (
                    f"{ALL_REDUCE} of {format_bytes(row.bytes)} in {row.dtype}{more}: "
                    f"{format_count(count, 'wrong element')} {where}; "
                    f"element {index} is {value:g} instead of {expected}"
                )
                findings.append(Finding(finding_id, message, (rank,)))
        if findings:
            break
    return findings


def summary(lines: Sequence[Line]) -> str:
    """The largest of float32."""
    largest = [line for line in lines if line["dtype"] == lines[0]["dtype"]][-1]
    text = f"{format_count(len(lines), 'row')} exact on all ranks; {format_bytes(largest['bytes'])}"
    text += f" in {measurement.format_time(largest['time_us_max'])}"
    if largest["busbw_gb_s"] is None:
        return f"{text}, busbw not applicable"
    return f"{text}, busbw {largest['busbw_gb_s']:.2f} GB/s"
