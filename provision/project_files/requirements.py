"""pip's lines -> statements: requirements.txt, `pip freeze`, `pip list`, and the `pip:` sections of
other files."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

from provision.core.requirement_lines import parse_lines
from provision.core.statements import PipRequirement, Statement

# The first lines of what `pip list` and `uv pip list` print.
PIP_TABLE = re.compile(r"\s*Package\s+Version\b.*\n[-\s]+\n")


def table_statements(file: str, text: str, selection: object) -> list[Statement]:
    """What `pip list` printed."""
    statements = []
    for number, line in enumerate(text.splitlines(), 1):
        columns = line.split()
        if number <= 2 or len(columns) < 2:
            continue
        requirement = f"{columns[0]}=={columns[1]}"
        if len(columns) > 2 and columns[2].startswith("/"):
            requirement = f"-e {columns[2]}"
        statements += parse_lines(requirement, file, number)
    return statements


def shell_words(requirement: PipRequirement) -> str:
    """A requirement without its marker, as words of a command line."""
    requirement = replace(requirement, marker="")
    if requirement.editable:
        return f"-e {shlex.quote(str(requirement)[3:])}"
    return shlex.quote(str(requirement))
