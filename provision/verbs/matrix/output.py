"""What `provision matrix` prints: the table, and explanations.

A value of the table that no source states is shown as such, never left empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from provision import sources
from provision.catalog import rules, version_key
from provision.cli.console import table as columns
from provision.cli.console import wrap
from provision.core.platforms import PLATFORM
from provision.resolver.table import Table, TableRow

if TYPE_CHECKING:
    from provision.core.types import Choice
    from provision.resolver import Explanation

ExplanationRow = tuple[str, str, str, str]  # what, its value, the reason, the source

NOT_KNOWN = "?"
# Fits 80 columns; --json has the rest.
HEAD = ("torch", "source", "CUDA", "Python", "NCCL", "driver >=", "GPUs (sm)", "glibc", "fits")
OTHER_PLATFORM = "linux-aarch64"
LEGEND = {
    "?": "? no source says",
    "*": "* from PyTorch's own wheel index, not the package index's default",
    "^": f"^ for {OTHER_PLATFORM}; all others are for {PLATFORM}",
    "  >=": "NCCL >=X is chosen by conda's solver",
}


def terminal_lines(table: Table, width: int | None = None) -> list[str]:
    """Aligned columns, and below them what the marks mean. width: of the terminal."""
    platforms = {row.platform for row in table.cells}
    rows = [_cells(row, is_marked=len(platforms) > 1) for row in table.cells]
    head: Sequence[str] = HEAD
    if not any(row.not_known or row.through_ptx for row in table.cells):
        head, rows = HEAD[:-1], [row[:-1] for row in rows]
    text = columns(rows, head, width=width)
    legend = [meaning for mark, meaning in LEGEND.items() if mark in text]
    if len(platforms) == 1:
        legend.append(f"all are for {platforms.pop()}")
    legend.append(str(table.facts))
    lines = text.split("\n")
    for remark in ("", *legend, *notes(table)):
        lines += wrap(remark, width)
    return lines


def notes(table: Table) -> list[str]:
    """What a reader must know besides the rows."""
    lines = []
    if table.hidden:
        parts = ", ".join(f"{part} ({n})" for part, n in sorted(table.hidden_by.items()))
        lines.append(
            f"{table.hidden} more might fit: no source says anything about {parts}. --unknown shows them."
        )
    if any(row.through_ptx for row in table.cells):
        (rule,) = (rule for rule in rules() if rule.through_ptx)
        lines.append(
            "ptx: the build has no code for that GPU and compiles its PTX when it starts. "
            f"{rule.reason}. {rule.advice}"
        )
    return lines


def _cells(row: TableRow, *, is_marked: bool) -> list[str]:
    """is_marked: the platform that is not the usual one has a mark."""
    source = row.source
    if sources.by_name(row.source).manager == "pip" and not row.index_default:
        source += "*"
    if is_marked and row.platform == OTHER_PLATFORM:
        source += "^"
    fits = "ptx" if row.through_ptx else "yes"
    return [
        row.torch,
        source,
        row.cuda,
        _pythons(row),
        row.nccl or (f">={row.nccl_at_least}" if row.nccl_at_least else NOT_KNOWN),
        row.driver or NOT_KNOWN,
        _architecture_range(row),
        row.glibc or NOT_KNOWN,
        NOT_KNOWN if row.not_known else fits,
    ]


def _pythons(row: TableRow) -> str:
    if row.python:
        return _python_range(row.python)
    return f"{_python_range(row.python_seen)},{NOT_KNOWN}" if row.python_seen else NOT_KNOWN


def _python_range(pythons: Sequence[str]) -> str:
    """3.8-3.12 if none in between is missing, else 3.8,10,12."""
    minors = [version_key(python)[1] for python in pythons]
    if len(minors) > 2 and minors == list(range(minors[0], minors[-1] + 1)):
        return f"{pythons[0]}-{pythons[-1]}"
    return ",".join([pythons[0], *(str(minor) for minor in minors[1:])])


def _architecture_range(row: TableRow) -> str:
    """First and last architecture: the whole list is too long for a terminal."""
    if not row.architectures:
        return NOT_KNOWN
    first = row.architectures[0].removeprefix("sm_")
    last = row.architectures[-1].removeprefix("sm_")
    return f"{first}-{last}+PTX" if row.ptx else f"{first}-{last}"


def explanation_lines(explanation: Explanation) -> list[str]:
    """Each choice of an environment with its value, and below it the reason and its source."""
    pins = [(pin.manager, pin.requirement, pin.reason, pin.source) for pin in explanation.pins]
    lines = [
        explanation.name,
        *_section("choices", _rows(explanation.choices)),
        *_section("pins", pins),
        *_section("rules", _rows(explanation.rules)),
        *_section("warnings", _rows(explanation.warnings)),
    ]
    machine = ", ".join(
        f"{name} {version}" for name, version in explanation.virtual_packages.items()
    )
    return [*lines, "", f"solved for {', '.join(explanation.platforms)} with {machine}"]


def _rows(choices: Sequence[Choice]) -> list[ExplanationRow]:
    return [(choice.what, choice.value, choice.reason, choice.source) for choice in choices]


def _section(title: str, rows: Sequence[ExplanationRow]) -> list[str]:
    """A titled list; nothing without rows."""
    if not rows:
        return []
    width = max(len(row[0]) for row in rows)
    lines = ["", title]
    for what, value, reason, source in rows:
        lines.append(f"  {what:{width}}  {value}".rstrip())
        origin = f" ({source})" if source else ""
        lines.append(f"  {'':{width}}    {reason}{origin}")
    return lines
