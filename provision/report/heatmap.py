"""The table of ranks: how strongly each value is shaded, by its distance from the median of all
ranks.

Pure; the colors are the page's.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from provision.report.measures import (
    RankColumn,
    RankTable,
    RankValue,
    format_rate,
    format_time,
)
from provision.report.model import Page

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
    return [_heat_map(page, table) for table in page.ranks]


def _heat_map(page: Page, table: RankTable) -> HeatMap:
    rows = []
    for rank, host, values in zip(table.ranks, table.hosts, table.rows):
        shaded = [_shade(value, column) for value, column in zip(values, table.columns)]
        rows.append((rank, host, tuple(shaded)))
    groups = []
    for name, columns in itertools.groupby(column.group for column in table.columns):
        groups.append((name, len(list(columns))))
    meanings = [f"{column.group}: {column.meaning}" for column in table.columns if column.meaning]
    return HeatMap(
        label=page.measurements[table.measurement].label,
        groups=tuple(groups),
        columns=table.columns,
        meanings=tuple(meanings),
        rows=tuple(rows),
        hidden=table.hidden,
    )


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
