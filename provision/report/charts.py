"""What is measured -> where it stands in a drawing: charts with logarithmic axes. Pure.

Coordinates are those of the charts' own viewBox, made for a phone's width, so that text stays readable there; colors, fonts and
strokes are the page's style sheet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from provision.report.measures import (
    Band,
    Curve,
    Point,
    rate_in_words,
    time_in_words,
)
from provision.report.model import Page
from provision_runtime.report.text import format_bytes

WIDTH, HEIGHT = 360, 240
LEFT, RIGHT, TOP, BOTTOM = 46, 20, 10, 34
FRAME = {
    "width": WIDTH,
    "height": HEIGHT,
    "left": LEFT,
    "right": WIDTH - RIGHT,
    "top": TOP,
    "bottom": HEIGHT - BOTTOM,
}
MOST_SIZE_TICKS = 5
COLORS = 8
NARROW = 1e-6
# In decades: a noise of a percent must not fill a chart.
SHORTEST = 0.1
MOST_DECADES, MOST_PARTED, NARROWER_THAN_STEPS, FEW = 6, 3.0, 0.8, 5
# Below it an operation is all latency: where larger ones were measured, bandwidth is drawn from here on.
BANDWIDTH_BYTES = 256 << 10
FEWEST_SIZES = 3
ALONE = 7


@dataclass(frozen=True, kw_only=True)
class Tick:
    at: float
    label: str


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A point with what is said when one points at it."""

    x: float
    y: float
    told: str


@dataclass(frozen=True, kw_only=True)
class Line:
    label: str
    color: int
    dash: int
    path: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True, kw_only=True)
class Chart:
    """title and told say in words what the drawing shows, for those who do not see it."""

    title: str
    told: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    lines: tuple[Line, ...]
    zones: tuple[tuple[str, str], ...]  # verdict -> outline of the zone in which a value gets it
    expected: tuple[str, ...]  # lines of what is expected


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One collective: its charts, and the values they are drawn from."""

    collective: str
    charts: tuple[Chart, ...]
    keys: tuple[tuple[str, int, int], ...]  # label, color, dash
    notes: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Axis:
    """A logarithmic axis from the smallest to the largest value. room: a share of its length left free at either end."""

    def __init__(
        self, values: Sequence[float], begin: float, end: float, room: float = 0.0
    ) -> None:
        low, high = math.log10(min(values)), math.log10(max(values))
        more = max((high - low) * room, (SHORTEST - (high - low)) / 2)
        self.low, self.high, self._begin, self._end = low - more, high + more, begin, end

    def holds(self, band: Band) -> bool:
        return self.low - NARROW <= math.log10(band.bytes) <= self.high + NARROW

    def at(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return round(self._begin + share * (self._end - self._begin), 1)


def figures(page: Page) -> list[Figure]:
    """A figure for each collective, with the curves of every run in it."""
    collectives = dict.fromkeys(curve.collective for curve in page.curves)
    return [
        _figure(page, [curve for curve in page.curves if curve.collective == name])
        for name in collectives
    ]


def _figure(page: Page, curves: Sequence[Curve]) -> Figure:
    styles = _styles(page, curves)
    large = {
        point.bytes for curve in curves for point in curve.points if point.bytes >= BANDWIDTH_BYTES
    }
    least = BANDWIDTH_BYTES if len(large) >= FEWEST_SIZES else 0
    title = f"Bus bandwidth in GB/s{f', from {format_bytes(least)} on' if least else ''}"
    charts = [
        _chart(
            curves,
            styles,
            title,
            lambda point: point.busbw_gb_s if point.bytes >= least else None,
            rate_in_words,
            banded=True,
        ),
        _chart(
            curves,
            styles,
            "Time: the slowest rank's median",
            lambda point: point.time_us,
            time_in_words,
            banded=False,
        ),
    ]
    return Figure(
        collective=curves[0].collective,
        charts=tuple(chart for chart in charts if chart is not None),
        keys=tuple(dict.fromkeys(styles)),
        notes=tuple(_notes(page, curves)),
        rows=tuple(_rows(page, curves)),
    )


def _notes(page: Page, curves: Sequence[Curve]) -> Iterator[str]:
    """Each note once; with the names of the runs that it is about, where it is not about all."""
    runs = list(dict.fromkeys(curve.measurement for curve in curves))
    for note in dict.fromkeys(note for curve in curves for note in curve.notes):
        about = [
            run
            for run in runs
            if any(curve.measurement == run and note in curve.notes for curve in curves)
        ]
        yield (
            note
            if about == runs
            else f"{', '.join(page.measurements[run].label for run in about)}: {note}"
        )


def _styles(page: Page, curves: Sequence[Curve]) -> list[tuple[str, int, int]]:
    """Of each curve its name, color and dashes. Several runs: the color is the run's, the dashes are the type's."""
    runs = list(dict.fromkeys(curve.measurement for curve in curves))
    types = list(dict.fromkeys(curve.dtype for curve in curves))
    found = []
    for curve in curves:
        run, kind = runs.index(curve.measurement), types.index(curve.dtype)
        label = page.measurements[curve.measurement].label
        if len(runs) == 1:
            found.append((curve.dtype, kind % COLORS, kind // COLORS))
        else:
            found.append(
                (
                    f"{label}, {curve.dtype}" if len(types) > 1 else label,
                    run % COLORS,
                    kind + run // COLORS,
                )
            )
    return found


def _chart(
    curves: Sequence[Curve],
    styles: Sequence[tuple[str, int, int]],
    title: str,
    value: Callable[[Point], float | None],
    label: Callable[[float], str],
    *,
    banded: bool,
) -> Chart | None:
    """None where nothing can be drawn: no value above 0."""
    drawn = [
        [(point, found) for point in curve.points if (found := value(point)) and found > 0]
        for curve in curves
    ]
    values = [found for points in drawn for _, found in points]
    if not values:
        return None
    x = Axis([point.bytes for points in drawn for point, _ in points], LEFT, WIDTH - RIGHT)
    expected = list(
        dict.fromkeys(
            tuple(filter(x.holds, curve.expected)) for curve in curves if banded and curve.expected
        )
    )
    edges = [
        edge
        for bands in expected
        for band in bands
        for edge in (band.bad or band.expected, band.expected)
    ]
    y = Axis([*values, *edges], HEIGHT - BOTTOM, TOP, room=0.06)
    lines = [_line(style, points, x, y, label) for style, points in zip(styles, drawn) if points]
    return Chart(
        title=title,
        told=f"{title} by message size, {len(lines)} {'curve' if len(lines) == 1 else 'curves'}; the values are in the table below.",
        x_ticks=tuple(_size_ticks(x)),
        y_ticks=tuple(_value_ticks(y, label)),
        lines=tuple(lines),
        zones=tuple(zone for bands in expected for zone in _zones(bands, x, y)),
        expected=tuple(_path(_edge(bands, "expected", x, y)) for bands in expected),
    )


def _line(
    style: tuple[str, int, int],
    points: Sequence[tuple[Point, float]],
    x: Axis,
    y: Axis,
    label: Callable[[float], str],
) -> Line:
    marks = tuple(
        Mark(
            x=x.at(point.bytes),
            y=y.at(value),
            told=f"{style[0]}, {format_bytes(point.bytes)}: {label(value)}",
        )
        for point, value in points
    )
    return Line(
        label=style[0],
        color=style[1],
        dash=style[2],
        path=_path((mark.x, mark.y) for mark in marks),
        marks=marks,
    )


def _path(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in points)


def _zones(bands: Sequence[Band], x: Axis, y: Axis) -> Iterator[tuple[str, str]]:
    """Where a value is a warning, and where it is fine: each between two edges, there along the one and back along the other."""
    judged = [band for band in bands if band.bad is not None]
    for verdict, lower, upper in (("warn", "bad", "fine"), ("pass", "fine", "expected")):
        there = list(_edge(judged, lower, x, y))
        back = list(_edge(judged, upper, x, y))
        if judged:
            yield verdict, _path([*there, *reversed(back)])


def _edge(bands: Sequence[Band], edge: str, x: Axis, y: Axis) -> Iterator[tuple[float, float]]:
    """A single size is drawn as wide as a mark."""
    for band in bands:
        at = (x.at(band.bytes), y.at(getattr(band, edge)))
        yield from ([at] if len(bands) > 1 else [(at[0] - ALONE, at[1]), (at[0] + ALONE, at[1])])


def _size_ticks(axis: Axis) -> Iterator[Tick]:
    """Powers of two, few enough to be read."""
    first, last = (
        math.ceil(axis.low / math.log10(2) - 1e-6),
        math.floor(axis.high / math.log10(2) + 1e-6),
    )
    step = max(1, math.ceil((last - first) / MOST_SIZE_TICKS))
    for power in range(first, last + 1, step):
        yield Tick(at=axis.at(2.0**power), label=format_bytes(2**power) if power >= 0 else "")


def _value_ticks(axis: Axis, label: Callable[[float], str]) -> Iterator[Tick]:
    for value in _round_values(axis.low, axis.high):
        if axis.low - NARROW <= math.log10(value) <= axis.high + NARROW:
            yield Tick(at=axis.at(value), label=label(value))


def _round_values(low: float, high: float) -> Iterator[float]:
    """Whole decades where there are enough of them, else 1, 2 and 5 of each, else round steps: about as many as can be read."""
    if high - low < NARROWER_THAN_STEPS:
        step = _round_up((10**high - 10**low) / FEW)
        yield from (
            step * count
            for count in range(math.ceil(10**low / step), math.floor(10**high / step) + 1)
        )
        return
    every = max(1, math.ceil((high - low) / MOST_DECADES))
    for power in range(math.floor(low), math.ceil(high) + 1):
        if power % every == 0:
            yield from (
                part * 10.0**power for part in ((1, 2, 5) if high - low < MOST_PARTED else (1,))
            )


def _round_up(value: float) -> float:
    decade = 10.0 ** math.floor(math.log10(value))
    return next(part * decade for part in (1, 2, 5, 10) if part * decade >= value)


def _rows(page: Page, curves: Sequence[Curve]) -> Iterator[tuple[str, ...]]:
    for curve in curves:
        for point in curve.points:
            yield (
                page.measurements[curve.measurement].label,
                curve.dtype,
                format_bytes(point.bytes),
                time_in_words(point.time_us),
                "" if point.p99_us is None else time_in_words(point.p99_us),
                "" if point.algbw_gb_s is None else rate_in_words(point.algbw_gb_s),
                "not applicable" if point.busbw_gb_s is None else rate_in_words(point.busbw_gb_s),
                "" if point.slowest_rank is None else str(point.slowest_rank),
                point.judged,
            )
