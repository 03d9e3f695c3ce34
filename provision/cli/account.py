"""The account of what was read from other tools' files, as text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from provision.cli.console import output_width, wrap_line

if TYPE_CHECKING:
    from provision.project_files.account import Entry

# Lines for the same reason that are shown; JSON has all.
SHOWN = 3


def account_lines(entries: Sequence[Entry]) -> list[str]:
    """How many lines were taken, translated and left out, and what became of those that were not
    simply taken. Next steps have lines of their own, unbroken, so that they can be copied."""
    if not entries:
        return []
    width = output_width()
    counts = Counter(str(entry.outcome) for entry in entries)
    outcomes = ("taken", "translated", "left out")
    lines = ["", ", ".join(f"{outcome} {counts[outcome]}" for outcome in outcomes)]
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in sorted(entries, key=lambda entry: entry.outcome == "left out"):
        if entry.outcome != "taken":
            groups.setdefault((entry.outcome, entry.reason), []).append(entry)
    for (outcome, reason), group in groups.items():
        lines += wrap_line(f"  {outcome}, because {reason}:" if reason else f"  {outcome}:", width)
        is_short = len(group) <= SHOWN
        for entry in group[:SHOWN]:
            location = f"{entry.file}:{entry.line}" if entry.line else entry.file
            became = f" -> {entry.became}" if entry.became else ""
            lines += wrap_line(f"    {location}: {entry.text}{became}", width)
            lines += [f"      {entry.next_step}"] if is_short and entry.next_step else []
        if not is_short:
            lines.append(f"    and {len(group) - SHOWN} more; --json lists them")
            lines += [f"      {step}" for step in _merged(entry.next_step for entry in group)]
    if any(entry.next_step.startswith("provision add") for entry in entries):
        note = "  (`provision add` changes an environment that `provision build` made)"
        lines += wrap_line(note, width)
    return lines


def _merged(steps: Iterable[str]) -> list[str]:
    """Each of some commands once, and those that differ in what they add as one."""
    merged: dict[str, dict[str, None]] = {}
    for step in filter(None, steps):
        start = re.match(r"provision add \S+ (?:--conda )?", step)
        command = start[0] if start else step
        merged.setdefault(command, {})[step.removeprefix(command)] = None
    return [command + " ".join(additions) for command, additions in merged.items()]
