"""What the page draws: charts of curves on logarithmic axes, and heat maps of the ranks. Pure.

A chart's coordinates are those of its own viewBox, which has a phone's width, so that text stays
readable there. Colors, fonts and strokes are in the page's style sheet.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from provision.report.measures import (
    Band,
    MeasuredCurve,
    Point,
    RankColumn,
    RankValue,
    format_rate,
    format_time,
)
from provision.report.model import Page
from provision_runtime.report.text import format_bytes, format_count

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
COLORS = 8
MAX_SIZE_TICKS = 5
# The shortest axis, in decades: a noise of one percent must not fill a chart.
MIN_DECADES = 0.1
# Ticks of an axis: steps of equal size below the first number of decades, 1, 2 and 5 of each
# decade below the second, else whole decades, at most so many.
DECADES_FOR_STEPS, DECADES_FOR_125, MAX_DECADE_TICKS = 0.8, 3.0, 6
STEPS = 5
ROUNDING = 1e-6
# Below this size an operation is all latency: bandwidth is drawn from here on, if enough larger
# sizes were measured.
BANDWIDTH_BYTES = 256 << 10
MIN_BANDWIDTH_SIZES = 3
# Half the width in which a band of a single size is drawn: about that of a mark.
SINGLE_BAND_WIDTH = 7
VALUE_ROOM = 0.06


@dataclass(frozen=True, kw_only=True)
class Tick:
    """A label of an axis."""

    at: float
    label: str


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A point of a line, with its tooltip."""

    x: float
    y: float
    tooltip: str


@dataclass(frozen=True, kw_only=True)
class Style:
    """How a curve is drawn and called. color, dash: numbers of the style sheet's classes."""

    label: str
    color: int
    dash: int


@dataclass(frozen=True, kw_only=True)
class ChartLine:
    """A curve in a chart."""

    style: Style
    path: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One drawing. description: what it shows, for those who cannot see it."""

    title: str
    description: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    lines: tuple[ChartLine, ...]
    zones: tuple[tuple[str, str], ...]  # a verdict, and the outline of the zone where values get it
    expected: tuple[str, ...]  # the lines of expected values


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One collective: its charts, and the values in them."""

    collective: str
    charts: tuple[Chart, ...]
    styles: tuple[Style, ...]
    notes: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Axis:
    """A logarithmic axis from the smallest to the largest value. room: the share of its length
    left free at both ends.
    """

    def __init__(
        self, values: Sequence[float], begin: float, end: float, room: float = 0.0
    ) -> None:
        low, high = math.log10(min(values)), math.log10(max(values))
        decades = high - low
        margin = max(decades * room, (MIN_DECADES - decades) / 2)
        self.low = low - margin
        self.high = high + margin
        self._begin = begin
        self._end = end

    def contains(self, value: float) -> bool:
        return self.low - ROUNDING <= math.log10(value) <= self.high + ROUNDING

    def at(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return round(self._begin + share * (self._end - self._begin), 1)


def figures(page: Page) -> list[Figure]:
    """A figure for each collective, with the curves of every run in it."""
    curves_by_collective: dict[str, list[MeasuredCurve]] = {}
    for curve in page.curves:
        curves_by_collective.setdefault(curve.collective, []).append(curve)
    figures = []
    for collective, curves in curves_by_collective.items():
        styles = _styles(page, curves)
        bandwidth_chart = _bandwidth_chart(curves, styles)
        time_chart = _chart(
            curves,
            styles,
            title="Time: the slowest rank's median",
            value_of=lambda point: point.time_us,
            format_value=format_time,
            with_bands=False,
        )
        charts = [chart for chart in (bandwidth_chart, time_chart) if chart is not None]
        figure = Figure(
            collective=collective,
            charts=tuple(charts),
            styles=tuple(dict.fromkeys(styles)),
            notes=tuple(_notes(page, curves)),
            rows=tuple(_rows(page, curves)),
        )
        figures.append(figure)
    return figures


def _bandwidth_chart(curves: Sequence[MeasuredCurve], styles: Sequence[Style]) -> Chart | None:
    sizes = {point.bytes for curve in curves for point in curve.points}
    large_sizes = [size for size in sizes if size >= BANDWIDTH_BYTES]
    title, min_bytes = "Bus bandwidth in GB/s", 0
    if len(large_sizes) >= MIN_BANDWIDTH_SIZES:
        min_bytes = BANDWIDTH_BYTES
        title = f"{title}, from {format_bytes(min_bytes)} on"

    def bandwidth(point: Point) -> float | None:
        return point.busbw_gb_s if point.bytes >= min_bytes else None

    return _chart(
        curves,
        styles,
        title=title,
        value_of=bandwidth,
        format_value=format_rate,
        with_bands=True,
    )


def _notes(page: Page, curves: Sequence[MeasuredCurve]) -> list[str]:
    """Each note once, with the labels of its runs unless it is about all of them."""
    runs_by_note: dict[str, dict[int, None]] = {}
    for curve in curves:
        for note in curve.notes:
            runs_by_note.setdefault(note, {})[curve.measurement] = None
    count = len({curve.measurement for curve in curves})
    notes = []
    for note, runs in runs_by_note.items():
        labels = ", ".join(page.measurements[run].label for run in runs)
        notes.append(note if len(runs) == count else f"{labels}: {note}")
    return notes


def _styles(page: Page, curves: Sequence[MeasuredCurve]) -> list[Style]:
    """One style for each curve.

    With several runs the color stands for the run and the dashes for the type.
    """
    runs = list(dict.fromkeys(curve.measurement for curve in curves))
    dtypes = list(dict.fromkeys(curve.dtype for curve in curves))
    styles = []
    for curve in curves:
        run, dtype = runs.index(curve.measurement), dtypes.index(curve.dtype)
        if len(runs) == 1:
            style = Style(label=curve.dtype, color=dtype % COLORS, dash=dtype // COLORS)
        else:
            label = page.measurements[curve.measurement].label
            if len(dtypes) > 1:
                label = f"{label}, {curve.dtype}"
            style = Style(label=label, color=run % COLORS, dash=dtype + run // COLORS)
        styles.append(style)
    return styles


def _chart(
    curves: Sequence[MeasuredCurve],
    styles: Sequence[Style],
    *,
    title: str,
    value_of: Callable[[Point], float | None],
    format_value: Callable[[float], str],
    with_bands: bool,
) -> Chart | None:
    """None if no value above 0 was measured: a logarithmic axis has no other."""
    points_by_curve: list[list[tuple[int, float]]] = []
    for curve in curves:
        points = []
        for point in curve.points:
            value = value_of(point)
            if value:
                points.append((point.bytes, value))
        points_by_curve.append(points)
    measured = [point for points in points_by_curve for point in points]
    if not measured:
        return None

    x = Axis([size for size, _ in measured], LEFT, WIDTH - RIGHT)
    bands_by_curve = _visible_bands(curves, x) if with_bands else []
    values = [value for _, value in measured]
    for bands in bands_by_curve:
        for band in bands:
            values += [band.bad or band.expected, band.expected]
    y = Axis(values, HEIGHT - BOTTOM, TOP, room=VALUE_ROOM)

    lines = []
    for style, points in zip(styles, points_by_curve):
        if points:
            lines.append(_line(style, points, x, y, format_value))
    zones, expected = [], []
    for bands in bands_by_curve:
        zones += _zones(bands, x, y)
        expected.append(_path(_edge(bands, x, y, lambda band: band.expected)))
    return Chart(
        title=title,
        description=f"{title} by message size, {format_count(len(lines), 'curve')}; "
        "the values are in the table below.",
        x_ticks=tuple(_size_ticks(x)),
        y_ticks=tuple(_value_ticks(y, format_value)),
        lines=tuple(lines),
        zones=tuple(zones),
        expected=tuple(expected),
    )


def _visible_bands(curves: Sequence[MeasuredCurve], x: Axis) -> list[tuple[Band, ...]]:
    """The bands of each curve within the axis, without repeats."""
    bands_by_curve = []
    for curve in curves:
        bands = tuple(band for band in curve.expected if x.contains(band.bytes))
        if curve.expected and bands not in bands_by_curve:
            bands_by_curve.append(bands)
    return bands_by_curve


def _line(
    style: Style,
    points: Sequence[tuple[int, float]],
    x: Axis,
    y: Axis,
    format_value: Callable[[float], str],
) -> ChartLine:
    marks = []
    for size, value in points:
        tooltip = f"{style.label}, {format_bytes(size)}: {format_value(value)}"
        marks.append(Mark(x=x.at(size), y=y.at(value), tooltip=tooltip))
    path = _path((mark.x, mark.y) for mark in marks)
    return ChartLine(style=style, path=path, marks=tuple(marks))


def _path(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in points)


def _zones(bands: Sequence[Band], x: Axis, y: Axis) -> list[tuple[str, str]]:
    """The outlines of the zones where values warn and pass: a lower edge, then the upper edge
    backwards.
    """
    judged = [band for band in bands if band.bad is not None]
    if not judged:
        return []
    bad = _edge(judged, x, y, lambda band: band.bad or band.expected)
    fine = _edge(judged, x, y, lambda band: band.fine or band.expected)
    expected = _edge(judged, x, y, lambda band: band.expected)
    return [
        ("warn", _path([*bad, *reversed(fine)])),
        ("pass", _path([*fine, *reversed(expected)])),
    ]


def _edge(
    bands: Sequence[Band], x: Axis, y: Axis, value_of: Callable[[Band], float]
) -> list[tuple[float, float]]:
    """An edge of bands. A single size gets the width of a mark."""
    if len(bands) == 1:
        center, height = x.at(bands[0].bytes), y.at(value_of(bands[0]))
        return [(center - SINGLE_BAND_WIDTH, height), (center + SINGLE_BAND_WIDTH, height)]
    return [(x.at(band.bytes), y.at(value_of(band))) for band in bands]


def _size_ticks(axis: Axis) -> list[Tick]:
    """Powers of two, few enough to be read."""
    first = math.ceil(axis.low / math.log10(2) - ROUNDING)
    last = math.floor(axis.high / math.log10(2) + ROUNDING)
    step = max(1, math.ceil((last - first) / MAX_SIZE_TICKS))
    ticks = []
    for power in range(first, last + 1, step):
        label = format_bytes(2**power) if power >= 0 else ""
        ticks.append(Tick(at=axis.at(2.0**power), label=label))
    return ticks


def _value_ticks(axis: Axis, format_value: Callable[[float], str]) -> list[Tick]:
    """Round values on the axis, about as many as can be read."""
    decades = axis.high - axis.low
    values: list[float] = []
    if decades < DECADES_FOR_STEPS:
        lowest, highest = 10**axis.low, 10**axis.high
        step = _round_up((highest - lowest) / STEPS)
        for count in range(math.ceil(lowest / step), math.floor(highest / step) + 1):
            values.append(step * count)
    else:
        digits = (1, 2, 5) if decades < DECADES_FOR_125 else (1,)
        decades_per_tick = max(1, math.ceil(decades / MAX_DECADE_TICKS))
        for power in range(math.floor(axis.low), math.ceil(axis.high) + 1):
            if power % decades_per_tick == 0:
                values += [digit * 10.0**power for digit in digits]
    ticks = []
    for value in values:
        if axis.contains(value):
            ticks.append(Tick(at=axis.at(value), label=format_value(value)))
    return ticks


def _round_up(value: float) -> float:
    """The next 1, 2 or 5 of a decade."""
    decade = 10.0 ** math.floor(math.log10(value))
    for digit in (1, 2, 5):
        if digit * decade >= value:
            return digit * decade
    return 10 * decade


def _rows(page: Page, curves: Sequence[MeasuredCurve]) -> list[tuple[str, ...]]:
    """The table of values, with the columns of VALUES_HEAD."""
    rows: list[tuple[str, ...]] = []
    for curve in curves:
        label = page.measurements[curve.measurement].label
        for point in curve.points:
            algbw, busbw, p99 = point.algbw_gb_s, point.busbw_gb_s, point.p99_us
            row = (
                label,
                curve.dtype,
                format_bytes(point.bytes),
                format_time(point.time_us),
                "" if p99 is None else format_time(p99),
                "" if algbw is None else format_rate(algbw),
                "not applicable" if busbw is None else format_rate(busbw),
                "" if point.slowest_rank is None else str(point.slowest_rank),
                point.judged,
            )
            rows.append(row)
    return rows


# The factors from the median, up or down, at which the shade gets stronger; below the first
# there is no shade.
SHADE_FACTORS = (1.05, 1.10, 1.25, 1.50)
# From this factor on the value's ratio is printed too.
RATIO_FROM = 1.10


@dataclass(frozen=True, kw_only=True)
class ShadedValue:
    """One value of the table. level: from -4 (far below the median) to 4 (far above)."""

    text: str
    level: int
    ratio: str


@dataclass(frozen=True, kw_only=True)
class HeatMap:
    """The table of one run."""

    label: str
    groups: tuple[tuple[str, int], ...]  # a heading, and how many columns it spans
    columns: tuple[RankColumn, ...]
    meanings: tuple[str, ...]
    rows: tuple[tuple[int, str, tuple[ShadedValue, ...]], ...]  # rank, host if several, values
    hidden: int


def heat_maps(page: Page) -> list[HeatMap]:
    """A heat map for each run: its values are shaded by their distance from the median."""
    maps = []
    for table in page.ranks:
        rows = []
        for rank, host, values in zip(table.ranks, table.hosts, table.rows):
            rows.append((rank, host, tuple(map(_shade, values, table.columns))))
        groups = itertools.groupby(column.group for column in table.columns)
        meanings = [
            f"{column.group}: {column.meaning}" for column in table.columns if column.meaning
        ]
        heat_map = HeatMap(
            label=page.measurements[table.measurement].label,
            groups=tuple((name, len(list(columns))) for name, columns in groups),
            columns=table.columns,
            meanings=tuple(meanings),
            rows=tuple(rows),
            hidden=table.hidden,
        )
        maps.append(heat_map)
    return maps


def _shade(value: RankValue, column: RankColumn) -> ShadedValue:
    text = format_time(value.value) if column.unit == "us" else format_rate(value.value)
    if not value.ratio:
        return ShadedValue(text=text, level=0, ratio="")
    factor = max(value.ratio, 1 / value.ratio)
    level = sum(factor >= limit for limit in SHADE_FACTORS)
    if value.ratio < 1:
        level = -level
    ratio = f"×{value.ratio:.2f}" if factor >= RATIO_FROM else ""
    return ShadedValue(text=text, level=level, ratio=ratio)
