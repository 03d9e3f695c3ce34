"""The table of ranks: how strongly each cell is shaded, by its distance from the median of all ranks. Pure; the colors are the page's."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from provision.report.measures import Cell, Column, RankTable, rate_in_words, time_in_words
from provision.report.model import Page

# How far from the median is how strong a shade; below the first there is none. A factor, up or down.
SHADES = (1.05, 1.10, 1.25, 1.50)
TOLD_FROM = 1.10


@dataclass(frozen=True, kw_only=True)
class Shade:
    """A cell of the table of ranks. level: -4 (far below the median) to 4 (far above)."""

    text: str
    level: int
    ratio: str


@dataclass(frozen=True, kw_only=True)
class HeatMap:
    label: str
    groups: tuple[tuple[str, int], ...]  # what stands above how many columns
    columns: tuple[Column, ...]
    meanings: tuple[str, ...]
    rows: tuple[
        tuple[int, str, tuple[Shade, ...]], ...
    ]  # rank, its host where there are several, its cells
    hidden: int


def heat_maps(page: Page) -> list[HeatMap]:
    return [_heat_map(page, table) for table in page.ranks]


def _heat_map(page: Page, table: RankTable) -> HeatMap:
    rows = [
        (rank, host, tuple(_shade(cell, column) for cell, column in zip(cells, table.columns)))
        for rank, host, cells in zip(table.ranks, table.hosts, table.rows)
    ]
    groups = tuple(
        (name, len(list(columns)))
        for name, columns in itertools.groupby(column.group for column in table.columns)
    )
    meanings = tuple(
        f"{column.group}: {column.meaning}" for column in table.columns if column.meaning
    )
    return HeatMap(
        label=page.measurements[table.measurement].label,
        groups=groups,
        columns=table.columns,
        meanings=meanings,
        rows=tuple(rows),
        hidden=table.hidden,
    )


def _shade(cell: Cell, column: Column) -> Shade:
    text = time_in_words(cell.value) if column.unit == "us" else rate_in_words(cell.value)
    if not cell.ratio:
        return Shade(text=text, level=0, ratio="")
    away = max(cell.ratio, 1 / cell.ratio)
    level = sum(away >= limit for limit in SHADES)
    told = f"×{cell.ratio:.2f}" if away >= TOLD_FROM else ""
    return Shade(text=text, level=level if cell.ratio > 1 else -level, ratio=told)
