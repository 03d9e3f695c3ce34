"""What texts for people or for containers install: READMEs, shell scripts, Apptainer's definitions,
Cog's file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from provision.core.requirement_lines import parse_lines
from provision.core.statements import Statement
from provision.core.yaml_text import parse_yaml
from provision.project_files.dockerfile import image_statements, installed_by, with_variables
from provision.project_files.rules import table
from provision.project_files.toml_file import Selection

_COMMENT = re.compile(r"(?:^|\s)#.*")
_ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=([\"']?)([^\s\"'$`;]*)\2;?")
_BASE_IMAGE = re.compile(r"From:\s*(\S+)", re.IGNORECASE)
_FENCE = re.compile(r"\s*(?:```|~~~)")
_CODE_SPAN = re.compile(r"`([^`]+)`")


def script_statements(file: str, text: str, selection: Selection | None = None) -> list[Statement]:
    """What a shell script or an Apptainer definition installs. Its other commands state nothing."""
    result: list[Statement] = []
    variables: dict[str, str] = {}
    for number, line in _whole_lines(text):
        image = _BASE_IMAGE.fullmatch(line.strip())
        if image:
            result += image_statements(image[1], file, number)
            continue
        command = with_variables(_COMMENT.sub("", line), variables)
        if assignment := _ASSIGNMENT.fullmatch(command.strip()):
            variables[assignment[1]] = assignment[3]
        result += installed_by(command, file, number)
    return result


def readme_statements(file: str, text: str, selection: Selection | None = None) -> list[Statement]:
    """What the commands in a README install: its code blocks, code spans and indented lines."""
    result: list[Statement] = []
    in_block = False
    for number, line in _whole_lines(text):
        if _FENCE.match(line):
            in_block = not in_block
        elif in_block or line.startswith(("    ", "\t", "$ ")):
            result += installed_by(_COMMENT.sub("", line), file, number)
        else:
            for span in _CODE_SPAN.findall(line):
                result += installed_by(span, file, number)
    return result


def cog_statements(file: str, text: str, selection: Selection | None = None) -> list[Statement]:
    """What a cog.yaml states about the image that Cog builds."""
    document = parse_yaml(text)
    build = document.get("build") if isinstance(document, dict) else None
    result: list[Statement] = []
    for key, kind in table("cog").items():
        value = build.get(key) if isinstance(build, dict) else None
        for item in value if isinstance(value, list) else [value] if value else []:
            written = str(item.get("command", "")) if isinstance(item, dict) else str(item)
            line = _line_of(text, written)
            note = Statement(file=file, line=line, text=f"{key}: {written}", kind="unknown")
            if kind == "command":
                result += installed_by(written, file, line)
            elif kind == "pip":
                result += parse_lines(written, file, line)
            elif kind == "unknown":
                result.append(
                    note.because("an environment has no packages of the operating system")
                )
            else:
                minor = ".".join(written.split(".")[:2])
                exact = f"=={minor}.*" if kind == "python" else minor
                result.append(replace(note, kind=kind, value=exact))
    return result


def _line_of(text: str, item: str) -> int:
    """The first line that has an item; 1 if none has it as it is written."""
    first = (item.splitlines() or [""])[0]
    numbers = (number for number, line in enumerate(text.splitlines(), 1) if first in line)
    return next(numbers, 1)


def _whole_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with those that continue them, each with the number of its first one."""
    first, whole = 0, ""
    for number, line in enumerate([*text.splitlines(), ""], 1):
        first = first if whole else number
        whole += line.removesuffix("\\")
        if not line.endswith("\\"):
            yield first, whole
            whole = ""
