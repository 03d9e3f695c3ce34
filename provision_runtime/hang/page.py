"""A diagnosis as a page of one screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..comm.rank_names import name_ranks
from ..report.table import wrapped
from ..report.text import escape_line

if TYPE_CHECKING:
    from .diagnosis import HangDiagnosis

MAX_GROUPS = 12


def lines(diagnosis: HangDiagnosis, width: int | None) -> list[str]:
    """width: of the terminal, or None not to wrap."""
    size = f"{diagnosis.world_size} rank{'s'[: diagnosis.world_size - 1]}"
    rows = [
        f"{diagnosis.verdict:<8} {diagnosis.job.strip(':') or 'ranks'} ({size}): {diagnosis.summary}"
    ]
    for cause in diagnosis.causes:
        rows.append(f"cause    {cause.id}: {cause.message}")
        if cause.line:
            rows.append(f"         {cause.line.file}:{cause.line.line}: {cause.line.source}")
        rows.append(f"do       {cause.advice}")
    for group in diagnosis.groups[:MAX_GROUPS]:
        mark = "* " if group.is_culprit else "  "
        host = f" on {group.hosts[0]}" if group.is_culprit else ""
        rows.append(f"{mark}{name_ranks(group.ranks)}{host}  {group.text}")
    if len(diagnosis.groups) > MAX_GROUPS:
        rows.append(f"  and {len(diagnosis.groups) - MAX_GROUPS} more states: --json has all")
    rows += [f"differs  {sentence}" for sentence in diagnosis.differences]
    rows += [f"note     {note}" for note in diagnosis.notes]
    return [line for row in rows for line in wrapped(escape_line(row), width, 9)]
