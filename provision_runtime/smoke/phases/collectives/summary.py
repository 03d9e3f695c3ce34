"""All ranks' measurements as one table, and what was wrong in them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....report.text import format_bytes
from ... import timing
from ...outcome import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .plan import Row

PLACEMENTS = ("out_of_place", "in_place")


def table(
    rows: Sequence[Row], answers: Sequence[Sequence[Mapping[str, Any]]]
) -> list[dict[str, Any]]:
    """`answers`: by rank, then by row."""
    return [_line(row, [answer[place] for answer in answers]) for place, row in enumerate(rows)]


def _line(row: Row, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One row over all ranks. Its figures are those of the usual placement, into another array."""
    beside, inside = (
        _figures(row, [entry.get(placement) for entry in entries]) for placement in PLACEMENTS
    )
    wrong = [sum(entry["wrong"][place] or 0 for entry in entries) for place in (0, 1)]
    assert beside is not None
    return {
        "collective": row.collective,
        "dtype": row.dtype,
        "bytes": row.bytes,
        "count": row.count,
        "iterations": row.iterations,
        **beside,
        "wrong": wrong[0],
        "in_place": None if inside is None else {**inside, "wrong": wrong[1]},
        "time_us_by_rank": [round(timing.median(entry["out_of_place"]), 2) for entry in entries],
    }


def _figures(row: Row, times: Sequence[Sequence[float] | None]) -> dict[str, Any] | None:
    given = [by_iteration for by_iteration in times if by_iteration is not None]
    if not given:
        return None
    medians = [timing.median(by_iteration) for by_iteration in given]
    whole = timing.slowest_each(given)
    slowest_s = max(medians) / 1e6
    busbw = timing.busbw_gb_s(row.collective, row.bytes, slowest_s, len(given))
    return {
        "time_us_max": round(max(medians), 2),
        "time_us_mean": round(timing.mean(medians), 2),
        "time_us_min": round(min(whole), 2),
        "time_us_p99": round(timing.percentile(whole, 99), 2),
        "slowest_rank": medians.index(max(medians)),
        "algbw_gb_s": round(timing.algbw_gb_s(row.bytes, slowest_s), 6),
        "busbw_gb_s": None if busbw is None else round(busbw, 6),
    }


def wrong_values(
    rows: Sequence[Row], answers: Sequence[Sequence[Mapping[str, Any]]]
) -> tuple[Finding, ...]:
    """Ranks whose own input changed, where there are any: then the wrong sums follow from that. Else who saw wrong results."""
    changed = {
        rank: [p for p, entry in enumerate(answer) if entry["own_wrong"]]
        for rank, answer in enumerate(answers)
    }
    if any(changed.values()):
        return _named(
            rows, answers, changed, "wrong-value", "own_wrong", "own_first", "before it was sent"
        )
    seen = {
        rank: [p for p, entry in enumerate(answer) if any(entry["wrong"])]
        for rank, answer in enumerate(answers)
    }
    return _named(
        rows,
        answers,
        seen,
        "wrong-result",
        "wrong",
        "first",
        "in the result, while every rank sent what it should",
    )


def _named(
    rows: Sequence[Row],
    answers: Sequence[Sequence[Mapping[str, Any]]],
    places: Mapping[int, Sequence[int]],
    id: str,
    count: str,
    first: str,
    where: str,
) -> tuple[Finding, ...]:
    return tuple(
        Finding(
            id,
            _in_words(rows[at[0]], answers[rank][at[0]], len(at) - 1, count, first, where),
            (rank,),
        )
        for rank, at in places.items()
        if at
    )


def _in_words(
    row: Row, entry: Mapping[str, Any], others: int, count: str, first: str, where: str
) -> str:
    index, found, right = entry[first]
    bad = entry[count] if isinstance(entry[count], int) else max(filter(None, entry[count]))
    more = f", and so in {others} other row{'s' if others > 1 else ''}" if others else ""
    size = format_bytes(row.bytes)
    return f"{row.collective} of {size} in {row.dtype}: {bad} wrong {where}, element {index} is {found:g} instead of {right}{more}"


def in_words(lines: Sequence[Mapping[str, Any]]) -> str:
    """The largest all_reduce, and how much else was right."""
    main = [
        line for line in lines if (line["collective"], line["dtype"]) == ("all_reduce", "float32")
    ]
    largest = main[-1]
    speed = (
        "busbw not applicable"
        if largest["busbw_gb_s"] is None
        else f"busbw {largest['busbw_gb_s']:.2f} GB/s"
    )
    others = sorted(
        {f"{line['collective']} {line['dtype']}" for line in lines} - {"all_reduce float32"}
    )
    beside = f", as are {len(others)} other collectives and types" if others else ""
    size = format_bytes(largest["bytes"])
    return f"{len(main)} sizes exact on all ranks{beside}; {size} in {timing.time_in_words(largest['time_us_max'])}, {speed}"
