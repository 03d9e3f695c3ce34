"""The account of what was read from other tools' files, as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from provision.cli.console import output_width, wrap

if TYPE_CHECKING:
    from provision.project_files.account import Entry

# Lines for the same reason that are shown; JSON has all.
SHOWN = 3


def account_lines(entries: Sequence[Entry]) -> list[str]:
    """How many lines were taken, translated and left out, and what became of those that were not
    simply taken. Next steps have lines of their own, unbroken, so that they can be copied."""
    from provision.project_files.account import counts

    if not entries:
        return []
    lines = ["", ", ".join(f"{outcome} {count}" for outcome, count in counts(entries).items())]
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in sorted(entries, key=lambda entry: entry.outcome == "left out"):
        if entry.outcome != "taken":
            groups.setdefault((entry.outcome, entry.reason), []).append(entry)
    for (outcome, reason), group in groups.items():
        lines += _wrapped(f"{outcome}, because {reason}:" if reason else f"{outcome}:", 2)
        for entry in group[:SHOWN]:
            location = f"{entry.file}:{entry.line}" if entry.line else entry.file
            became = f" -> {entry.became}" if entry.became else ""
            lines += _wrapped(f"{location}: {entry.text}{became}", 4)
            if entry.next_step:
                lines.append(f"      {entry.next_step}")
        if len(group) > SHOWN:
            lines.append(f"    and {len(group) - SHOWN} more; --json lists them")
    if any(entry.next_step.startswith("provision add") for entry in entries):
        lines += _wrapped("(`provision add` changes an environment that `provision build` made)", 2)
    return lines


def _wrapped(text: str, indent: int) -> list[str]:
    width = output_width()
    first, *rest = wrap(text, None if width is None else width - indent - 2)
    return [f"{' ' * indent}{first}", *(f"{' ' * (indent + 2)}{line}" for line in rest)]
