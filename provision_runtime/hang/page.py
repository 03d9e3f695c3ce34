"""A diagnosis as a page of one screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..comm.rank_names import name_ranks
from ..report.table import wrapped
from ..report.text import escape_line

if TYPE_CHECKING:
    from .diagnosis import Diagnosis

MAX_GROUPS = 12


def lines(diagnosis: Diagnosis, width: int | None) -> list[str]:
    """width: of the terminal, or None not to wrap."""
    size = f"{diagnosis.world_size} ranks" if diagnosis.world_size > 1 else "1 rank"
    result = wrapped(
        f"{diagnosis.verdict:<8} {diagnosis.job} ({size}): {diagnosis.summary}", width, 9
    )
    for cause in diagnosis.causes:
        result += wrapped(f"cause    {cause.id}: {escape_line(cause.message)}", width, 9)
        if cause.line:
            result += wrapped(f"         {cause.line.file}:{cause.line.line}", width, 9)
            if cause.line.source:
                result.append(f"             {escape_line(cause.line.source)}")
        result += wrapped(f"         -> {cause.advice}", width, 12)
    for group in diagnosis.groups[:MAX_GROUPS]:
        mark = "*" if group.is_culprit else " "
        host = f" ({group.hosts[0]})" if group.is_culprit else ""
        result += wrapped(
            f"{mark}{name_ranks(group.ranks)}{host}: {escape_line(group.text)}", width, 4
        )
    if len(diagnosis.groups) > MAX_GROUPS:
        result.append(f" and {len(diagnosis.groups) - MAX_GROUPS} more states: --json has all")
    for sentence in diagnosis.differences:
        result += wrapped(f"differs  {escape_line(sentence)}", width, 9)
    for note in diagnosis.notes:
        result += wrapped(f"note     {escape_line(note)}", width, 9)
    return result
