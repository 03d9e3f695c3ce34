"""Passports and smoke reports -> one page: what an environment is and why, what was measured of it, and how runs differ. Pure but for
reading the files.

`reading` judges files by their schemas, `measures` knows what the phases measure, `contents` is what the page says (`--json`),
`comparing` what differs, `drawing` where it stands in charts, `shading` how cells are shaded. The page's text is the template's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from provision.report import charts, heatmap
from provision.report.evidence import Evidence, read
from provision.report.model import Page, page
from provision_runtime.report.table import name_ranks

__all__ = ["Evidence", "Page", "page", "read", "values"]

VALUES_HEAD = (
    "run",
    "type",
    "size",
    "time",
    "p99",
    "algbw, GB/s",
    "busbw, GB/s",
    "slowest rank",
    "judged",
)


def values(page: Page) -> dict[str, Any]:
    """What the template words."""
    return {
        "page": page,
        "compared": list(_compared(page)),
        "figures": charts.figures(page),
        "heat_maps": heatmap.heat_maps(page),
        "frame": charts.FRAME,
        "row_head": VALUES_HEAD,
        "name_ranks": name_ranks,
    }


def _compared(page: Page) -> Iterator[tuple[str, str, list[str]]]:
    """What there are several of: its kind, a heading, and the name of each."""
    if len(page.environments) > 1:
        yield "environment", "Between the environments", [one.name for one in page.environments]
    if len(page.measurements) > 1:
        yield (
            "measurement",
            "Between the runs of the smoke test",
            [one.label for one in page.measurements],
        )
