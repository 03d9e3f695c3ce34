"""What texts for people or for containers install: READMEs, shell scripts, Apptainer's definitions,
the files of Cog and of development containers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from packaging.utils import canonicalize_name

from provision.core.package_names import package_name
from provision.core.requirement_lines import parse_lines
from provision.core.statements import Statement
from provision.core.yaml_text import parse_yaml
from provision.project_files.decision import COMPANIONS, TORCH
from provision.project_files.dockerfile import image_statements, installed_by, with_variables
from provision.project_files.rules import table
from provision.project_files.toml_file import Selection

_COMMENT = re.compile(r"(?:^|\s)#.*")
_ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=([\"']?)([^\s\"'$`;]*)\2;?")
_SCRIPT = re.compile(r"(?:^|&&|;|\b(?:bash|sh|source)\s)\s*([\w./-]+\.sh)\b")
_BASE_IMAGE = re.compile(r"From:\s*(\S+)", re.IGNORECASE)
_FENCE = re.compile(r"\s*(?:```|~~~)")
_CODE_SPAN = re.compile(r"`([^`]+)`")
# What begins a branch of a script, and the pattern of a `case`.
_BRANCH = re.compile(r"\s*(?:(if|case)|(elif|else)|(fi|esac))\b\s*(.*)")
_PATTERN = re.compile(r"\s*\(?([^\s()'\"]+(?:\s*\|\s*[^\s()]+)*)\)(?!\))(.*)")
_JSON_COMMENT = re.compile(r"(\"(?:\\.|[^\"\\])*\")|//[^\n]*|/\*.*?\*/", re.DOTALL)


def script_statements(file: str, text: str, selection: Selection | None = None) -> list[Statement]:
    """What a shell script or an Apptainer definition installs. Its other commands state nothing."""
    result: list[Statement] = []
    variables: dict[str, str] = {}
    blocks: list[str] = []
    for number, line in _whole_lines(text):
        line = _without_branch(line, blocks)
        image = _BASE_IMAGE.fullmatch(line.strip())
        if image:
            result += image_statements(image[1], file, number)
            continue
        command = with_variables(_COMMENT.sub("", line), variables)
        if assignment := _ASSIGNMENT.fullmatch(command.strip()):
            variables[assignment[1]] = assignment[3]
        branch = " / ".join(blocks)
        result += [replace(item, branch=branch) for item in installed_by(command, file, number)]
    return _without_alternatives(result)


def _without_branch(line: str, blocks: list[str]) -> str:
    """The command in a line of a script, without the words of `if` and `case`. blocks: the conditions
    that lead there, which are brought up to date."""
    line = re.sub(r"^\s*then\b", "", line)
    if match := _BRANCH.match(line):
        opening, other, closing, condition = match.groups()
        if (closing or other) and blocks:
            blocks.pop()
        if opening or other:
            condition, _, rest = condition.partition(";" if other != "else" else "\0")
            begins = f"{opening or other} {condition}".removesuffix(" then").strip()
            blocks.append("else" if other == "else" else begins)
            return condition if other == "else" else rest.strip().removeprefix("then")
        return ""
    if blocks and blocks[-1].startswith("case ") and (match := _PATTERN.match(line)):
        blocks[-1] = f"{blocks[-1].partition(' in')[0]} in {match[1]})"
        return match[2].removesuffix(";;")
    return line.replace(";;", "")


def _without_alternatives(statements: Sequence[Statement]) -> list[Statement]:
    """The statements, with packages that branches of a script request in several forms as notes.
    Those of torch remain: what is chosen of it decides."""
    forms: dict[str, set[str]] = {}
    for item in statements:
        forms.setdefault(_package(item), set()).add(item.value)
    result = []
    for item in statements:
        name = _package(item)
        if item.branch and name and len(forms[name]) > 1 and name not in (*TORCH, *COMPANIONS):
            step = f"provision add NAME {'' if item.requirement else '--conda '}{name}"
            item = item.because(f"the branches of {item.file} install several", step, kind="note")
        result.append(item)
    return result


def _package(statement: Statement) -> str:
    """The package that a statement requests by its name; empty for any other statement."""
    if statement.requirement:
        return canonicalize_name(statement.requirement.name)
    return package_name(statement.value) if statement.kind == "conda" else ""


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
    return _of_keys(file, text, build, table("cog"))


def devcontainer_statements(
    file: str, text: str, selection: Selection | None = None
) -> list[Statement]:
    """What a devcontainer.json states: its image, features and commands."""
    document = parse_yaml(_JSON_COMMENT.sub(lambda match: match[1] or "", text).replace("\t", " "))
    features = document.get("features") if isinstance(document, dict) else None
    if isinstance(features, dict):
        # By their short names: ghcr.io/devcontainers/features/python:1 is python.
        short = {re.sub(r".*/|:.*", "", name): value for name, value in features.items()}
        document = {**document, "features": short}
    return _of_keys(file, text, document, table("devcontainer"))


def _of_keys(file: str, text: str, document: Any, keys: dict[str, Any]) -> list[Statement]:
    """What the values of some keys state. keys: what each key states."""
    result: list[Statement] = []
    for key, kind in keys.items():
        value = document
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if isinstance(value, dict):  # commands that run at the same time
            value = list(value.values())
        if key.endswith("Command") and isinstance(value, list):
            value = [" ".join(item) if isinstance(item, list) else item for item in value]
        for item in value if isinstance(value, list) else [value] if value else []:
            written = str(item.get("command", "")) if isinstance(item, dict) else str(item)
            line = _line_of(text, written)
            note = Statement(file=file, line=line, text=f"{key}: {written}", kind="unknown")
            if kind == "image":
                result += image_statements(written, file, line)
            elif kind == "include":
                result.append(replace(note, kind="include", value=written))
            elif kind in ("python", "cuda") and not written[:1].isdigit():
                continue  # latest, os-provided, none
            elif kind == "command":
                result += installed_by(written, file, line)
                for script in _SCRIPT.findall(written):
                    result.append(replace(note, kind="include", value=script))
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
