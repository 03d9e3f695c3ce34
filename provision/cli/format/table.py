"""The table as text for a terminal, CSV and Markdown, and the values of its HTML page. What is not known is said so."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections import Counter
from collections.abc import Sequence
from typing import Any

from provision import sources
from provision.catalog import rules, version_key
from provision.resolver.table import Table, TableRow

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
# Fits 100 columns; the rest is in the other formats.
NARROW = ("torch", "source", "CUDA", "platform", "Python", "NCCL", "driver >=", "GPUs", "glibc")
LEGEND = {
    "?": "? no source says",
    "*": "* from PyTorch's own wheel index, not the package index's default",
    "  >=": "NCCL >=X is chosen by conda's solver",
}


def table_text(table: Table, format: str) -> str:
    """The table in one of the formats of `provision matrix --format`, JSON excepted."""
    if format == "csv":
        return as_csv(table)
    if format == "html":
        from provision.render import render_table

        return render_table(page(table))
    if format == "markdown":
        return "\n".join(markdown(table))
    return "\n".join(text(table))


def text(table: Table) -> list[str]:
    """Aligned columns of at most 100 characters, and below them what the marks mean."""
    remarks = any(_remark(cell) for cell in table.cells)
    head = (
        *(name.replace("GPUs", "GPUs (sm)") for name in NARROW),
        *(("fits",) if remarks else ()),
    )
    rows = [
        [*_narrow(cell), *(["?" if cell.not_known else _remark(cell) or "yes"] if remarks else [])]
        for cell in table.cells
    ]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = [
        "  ".join(word.ljust(width) for word, width in zip(row, widths)).rstrip()
        for row in [head, *rows]
    ]
    return [*lines, "", *_legend(lines), *notes(table)]


def as_csv(table: Table) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*HEAD, "fits"])
    writer.writerows([*_wide(cell), _remark(cell) or "yes"] for cell in table.cells)
    return out.getvalue().rstrip("\n")


def markdown(table: Table) -> list[str]:
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    lines += [
        "| " + " | ".join(word.replace("|", "\\|") for word in _wide(cell)) + " |"
        for cell in table.cells
    ]
    remarks = [f"- {line}" for line in notes(table)]
    return [*lines, *(["", *remarks] if remarks else [])]


def page(table: Table) -> dict[str, Any]:
    """What the HTML template says."""
    rows = [
        {"words": list(zip(HEAD, _wide(cell))), "remark": _remark(cell), "source": cell.from_source}
        for cell in table.cells
    ]
    return {"head": HEAD, "rows": rows, "notes": notes(table), "not_known": NOT_KNOWN}


def notes(table: Table) -> list[str]:
    """What a reader must know beside the cells."""
    found = []
    asked = Counter(part for cell in table.cells for part in cell.not_known)
    if asked:
        parts = ", ".join(f"{part} ({count})" for part, count in sorted(asked.items()))
        found.append(f"Of those that might fit, no source says about {parts}.")
    if table.hidden:
        parts = ", ".join(f"{part} ({count})" for part, count in sorted(table.hidden_by.items()))
        found.append(
            f"{table.hidden} more might fit: no source says about {parts}. --unknown shows them."
        )
    found += table.hints
    if any(cell.through_ptx for cell in table.cells):
        (rule,) = (rule for rule in rules() if rule.through_ptx)
        found.append(
            f"ptx: the build has no code for that GPU and compiles its PTX when it starts. {rule.reason}. {rule.advice}"
        )
    return found


def _narrow(cell: TableRow) -> list[str]:
    wide = dict(zip(HEAD, _wide(cell)))
    narrow = {
        **wide,
        "GPUs": _span(cell),
        "source": cell.source + ("*" if _is_on_own_index(cell) else ""),
    }
    narrow["Python"] = (
        _pythons(dataclasses.replace(cell, free_threaded=()))
        .replace(", 3.", ",")
        .replace(", ", ",")
    )  # 3.8,10,12
    return [narrow[name].replace(NOT_KNOWN, "?") for name in NARROW]


def _wide(cell: TableRow) -> list[str]:
    return [
        cell.torch,
        f"{cell.source} (own index)" if _is_on_own_index(cell) else cell.source,
        cell.cuda,
        cell.platform,
        _pythons(cell),
        _version(cell.nccl, cell.nccl_at_least),
        _version(cell.cudnn, cell.cudnn_at_least),
        cell.driver or NOT_KNOWN,
        " ".join(cell.architectures) + ("+PTX" if cell.ptx else "")
        if cell.architectures
        else NOT_KNOWN,
        cell.glibc or NOT_KNOWN,
        cell.torchvision or NOT_KNOWN,
        cell.torchaudio or "none",
        cell.triton or NOT_KNOWN,
    ]


def _is_on_own_index(cell: TableRow) -> bool:
    """Whether only PyTorch's own wheel index has the build."""
    return sources.by_name(cell.source).manager == "pip" and not cell.index_default


def _remark(cell: TableRow) -> str:
    if cell.not_known:
        return f"{NOT_KNOWN}: {', '.join(cell.not_known)}"
    return "ptx" if cell.through_ptx else ""


def _version(version: str | None, at_least: str | None) -> str:
    return version or (f">={at_least}" if at_least else NOT_KNOWN)


def _pythons(cell: TableRow) -> str:
    if cell.python:
        return ", ".join([_run(cell.python), *cell.free_threaded])
    return f"{_run(cell.python_seen)}, {NOT_KNOWN}" if cell.python_seen else NOT_KNOWN


def _run(pythons: Sequence[str]) -> str:
    """3.8-3.12 where none is missing in between."""
    minors = [version_key(python)[1] for python in pythons]
    if len(minors) > 2 and minors == list(range(minors[0], minors[-1] + 1)):
        return f"{pythons[0]}-{pythons[-1]}"
    return ", ".join(pythons)


def _span(cell: TableRow) -> str:
    """First and last architecture: the whole list is too long for a terminal."""
    if not cell.architectures:
        return NOT_KNOWN
    first, last = (
        name.removeprefix("sm_") for name in (cell.architectures[0], cell.architectures[-1])
    )
    return f"{first}-{last}{'+PTX' if cell.ptx else ''}"


def _legend(lines: Sequence[str]) -> list[str]:
    body = "\n".join(lines)
    return [meaning for mark, meaning in LEGEND.items() if mark in body]
