"""The account of what was read from other tools' files, as text."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from provision.cli.console import output_width, wrap

if TYPE_CHECKING:
    from provision.project_files.account import Entry

# Lines for the same reason that are shown; JSON has all.
SHOWN = 3


def account_lines(entries: Sequence[Entry]) -> list[str]:
    """How many lines were taken, translated and left out, and what became of those that were not
    simply taken. Next steps have lines of their own, so that they can be copied."""
    from provision.project_files.account import counts

    if not entries:
        return []
    lines = ["", ", ".join(f"{outcome} {count}" for outcome, count in counts(entries).items())]
    for outcome in ("translated", "left out"):
        chosen = [entry for entry in entries if entry.outcome == outcome]
        for reason, group in itertools.groupby(chosen, key=lambda entry: entry.reason):
            lines += _group_lines(outcome, reason, list(group))
    if any(entry.next_step.startswith("provision add") for entry in entries):
        lines += _wrapped("(`provision add` changes an environment that `provision build` made)", 2)
    return lines


def _group_lines(outcome: str, reason: str, entries: Sequence[Entry]) -> list[str]:
    lines = []
    for entry in entries[:SHOWN]:
        location = f"{entry.file}:{entry.line}" if entry.line else entry.file
        became = f" -> {entry.became}" if entry.became else ""
        lines += _wrapped(f"{outcome}: {location}: {entry.text}{became}", 2)
        if len(entries) <= SHOWN and entry.next_step:
            lines.append(f"      {entry.next_step}")
    if len(entries) > SHOWN:
        lines.append(f"  {outcome}: {len(entries) - SHOWN} more like these (--json lists them)")
        if entries[0].next_step:
            lines.append(f"      {entries[0].next_step}")
    if reason:
        lines += _wrapped(f"  because {reason}", 4)
    return lines


def _wrapped(text: str, indent: int) -> list[str]:
    width = output_width()
    first, *rest = wrap(text, None if width is None else width - indent)
    return [f"{' ' * indent}{first.strip()}", *(f"{' ' * (indent + 4)}{line}" for line in rest)]
