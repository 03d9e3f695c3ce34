"""What `provision matrix` prints: the table for a terminal or as CSV, and explanations.

A value of the table that no source states is shown as such, never left empty.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
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

NOT_KNOWN = "not known"
HEAD = (
    "torch",
    "source",
    "CUDA",
    "platform",
    "Python",
    "NCCL",
    "cuDNN",
    "driver >=",
    "GPUs",
    "glibc",
    "torchvision",
    "torchaudio",
    "triton",
)
# Fits 80 columns. The rest is in the other formats. On a narrower terminal, columns are left out in
# the order of the second list.
NARROW = ("torch", "source", "CUDA", "Python", "NCCL", "driver >=", "GPUs", "glibc")
LEFT_OUT = ("glibc", "NCCL", "GPUs", "driver >=", "Python")
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
    all_cells = [_narrow_cells(row, is_marked=len(platforms) > 1) for row in table.cells]
    has_remarks = any(_remark(row) for row in table.cells)
    names = [*NARROW, "fits"] if has_remarks else list(NARROW)
    left_out: list[str] = []
    while True:
        head = ["GPUs (sm)" if name == "GPUs" else name for name in names]
        text = columns([[cells[name] for name in names] for cells in all_cells], head)
        fits = width is None or max(map(len, text.split("\n"))) <= width
        if fits or len(left_out) == len(LEFT_OUT):
            break
        left_out.append(LEFT_OUT[len(left_out)])
        names.remove(left_out[-1])
    legend = [meaning for mark, meaning in LEGEND.items() if mark in text]
    if len(platforms) == 1:
        legend.append(f"all are for {platforms.pop()}")
    if left_out:
        legend.append(f"not shown, for lack of width: {', '.join(left_out)} (--format csv has all)")
    legend.append(str(table.facts))
    lines = text.split("\n")
    for remark in ("", *legend, *notes(table)):
        lines += wrap(remark, width)
    return lines


def csv_text(table: Table) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*HEAD, "fits"])
    for row in table.cells:
        writer.writerow([*_wide_cells(row), _remark(row) or "yes"])
    return out.getvalue().rstrip("\n")


def notes(table: Table) -> list[str]:
    """What a reader must know besides the rows."""
    lines = []
    from_index = sorted({row.torch for row in table.cells} & set(table.facts.from_index))
    if from_index:
        lines.append(f"Of {', '.join(from_index)} only the package index says something.")
    unknown = Counter(part for row in table.cells for part in row.not_known)
    if unknown:
        lines.append(f"Of those that might fit, no source says about {_counts(unknown)}.")
    if table.hidden:
        parts = _counts(table.hidden_by)
        lines.append(
            f"{table.hidden} more might fit: no source says about {parts}. --unknown shows them."
        )
    lines += table.hints
    if any(row.through_ptx for row in table.cells):
        (rule,) = (rule for rule in rules() if rule.through_ptx)
        lines.append(
            "ptx: the build has no code for that GPU and compiles its PTX when it starts. "
            f"{rule.reason}. {rule.advice}"
        )
    return lines


def _counts(parts: Mapping[str, int]) -> str:
    return ", ".join(f"{part} ({count})" for part, count in sorted(parts.items()))


def _narrow_cells(row: TableRow, *, is_marked: bool) -> dict[str, str]:
    """The cells for a terminal, by column: shorter. is_marked: the other platform is."""
    cells = dict(zip(HEAD, _wide_cells(row)))
    cells["GPUs"] = _architecture_range(row)
    cells["source"] = f"{row.source}*" if _is_on_torch_index(row) else row.source
    if is_marked and row.platform == OTHER_PLATFORM:
        cells["source"] += "^"
    # 3.8,10,12
    pythons = _pythons(replace(row, free_threaded=()))
    cells["Python"] = pythons.replace(", 3.", ",").replace(", ", ",")
    cells["fits"] = "?" if row.not_known else _remark(row) or "yes"
    return {name: cells[name].replace(NOT_KNOWN, "?") for name in (*NARROW, "fits")}


def _wide_cells(row: TableRow) -> list[str]:
    architectures = NOT_KNOWN
    if row.architectures:
        architectures = " ".join(row.architectures) + ("+PTX" if row.ptx else "")
    return [
        row.torch,
        f"{row.source} (own index)" if _is_on_torch_index(row) else row.source,
        row.cuda,
        row.platform,
        _pythons(row),
        _version(row.nccl, row.nccl_at_least),
        _version(row.cudnn, row.cudnn_at_least),
        row.driver or NOT_KNOWN,
        architectures,
        row.glibc or NOT_KNOWN,
        row.torchvision or NOT_KNOWN,
        row.torchaudio or "none",
        row.triton or NOT_KNOWN,
    ]


def _is_on_torch_index(row: TableRow) -> bool:
    """Whether only PyTorch's own wheel index has the build."""
    return sources.by_name(row.source).manager == "pip" and not row.index_default


def _remark(row: TableRow) -> str:
    if row.not_known:
        return f"{NOT_KNOWN}: {', '.join(row.not_known)}"
    return "ptx" if row.through_ptx else ""


def _version(version: str | None, at_least: str | None) -> str:
    if version:
        return version
    return f">={at_least}" if at_least else NOT_KNOWN


def _pythons(row: TableRow) -> str:
    if row.python:
        return ", ".join([_python_range(row.python), *row.free_threaded])
    if row.python_seen:
        return f"{_python_range(row.python_seen)}, {NOT_KNOWN}"
    return NOT_KNOWN


def _python_range(pythons: Sequence[str]) -> str:
    """3.8-3.12 if none in between is missing, else a list."""
    minors = [version_key(python)[1] for python in pythons]
    if len(minors) > 2 and minors == list(range(minors[0], minors[-1] + 1)):
        return f"{pythons[0]}-{pythons[-1]}"
    return ", ".join(pythons)


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
        *_section("not chosen", _rows(explanation.not_chosen)),
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
