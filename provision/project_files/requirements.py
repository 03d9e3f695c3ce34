"""pip's lines -> statements: requirements.txt, `pip freeze`, `pip list`, and the `pip:` sections of
other files."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import replace

from provision.core.requirement_lines import (
    LineKind,
    PipRequirement,
    RequirementLine,
    parse_lines,
)
from provision.project_files.statements import Kind, Statement

_KINDS: dict[LineKind, Kind] = {
    "requirement": "pip",
    "include": "include",
    "constraints": "constraints",
    "constraint": "constraint",
    "index": "index",
    "extra-index": "index",
    "find-links": "find-links",
    "ignored": "ignored",
    "unknown": "unknown",
}
# The first lines of what `pip list` and `uv pip list` print.
PIP_TABLE = re.compile(r"\s*Package\s+Version\b.*\n[-\s]+\n")


def statements_of(
    lines: Iterable[RequirementLine], *, file: str = "", line: int | None = None
) -> list[Statement]:
    """Statements of parsed lines. file, line: where they are, if the lines do not say it."""
    statements = []
    for entry in lines:
        statements.append(
            Statement(
                file=file or entry.file,
                line=line or entry.line,
                text=entry.text,
                kind=_KINDS[entry.kind],
                value=entry.value,
                reason=entry.reason,
                next_step=entry.next_step,
                packages=entry.packages,
                credential=entry.credential,
            )
        )
    return statements


def table_statements(file: str, text: str, selection: object = None) -> list[Statement]:
    """What `pip list` printed."""
    statements = []
    for number, line in enumerate(text.splitlines(), 1):
        columns = line.split()
        if number <= 2 or len(columns) < 2:
            continue
        requirement = f"{columns[0]}=={columns[1]}"
        if len(columns) > 2 and columns[2].startswith("/"):
            requirement = f"-e {columns[2]}"
        statements += statements_of(parse_lines(requirement), file=file, line=number)
    return statements


def shell_words(requirement: PipRequirement) -> str:
    """A requirement without its marker, as words of a command line."""
    requirement = replace(requirement, marker="")
    if requirement.editable:
        return f"-e {shlex.quote(str(requirement)[3:])}"
    return shlex.quote(str(requirement))
