"""What Dockerfiles, definitions of Apptainer, shell scripts and READMEs install.

Conditions are not evaluated: branches that install different builds contradict each other, and what
only some of them install is a note. Commands that install no packages state nothing.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from provision.core.package_names import package_name
from provision.core.requirement_lines import parse_lines
from provision.core.statements import Kind, Statement
from provision.project_files.decision import OF_TORCH
from provision.project_files.rules import table
from provision.project_files.toml_file import Selection

_IMAGE = re.compile(r"FROM:?\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?", re.IGNORECASE)
_VARIABLE = re.compile(r"\$\{?(\w+)(?::-([^}]*))?\}?")
_ASSIGNING = re.compile(r"(?:ARG|ENV|export)\s|[A-Za-z_]\w*=")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=([\"']?)([^\s\"'$`;]+)\2")
_INDEX_VARIABLE = re.compile(r"(?:PIP|UV)_(INDEX_URL|EXTRA_INDEX_URL|FIND_LINKS)")
_COMMENT = re.compile(r"\s#.*")
# A semicolon may belong to a marker.
_SEPARATOR = re.compile(r"&&|\|\|?|;(?!\s*(?:python|sys|platform|os)_)")
_INSTALL = re.compile(
    r"(?:^|[\s/])(?:(pip)[\d.]*\s+(?:-\S+\s+)?install|(?:conda|(?:micro)?mamba)\s+(?:\S+\s+)?"
    r"(?:install|create|(?<=env )update))\s"
)
_PROJECT = re.compile(
    r"(?:^|[\s/])(?:(?:poetry|pdm|pipenv|pixi|uv|rye)\s+(?:install|sync)"
    r"|setup\.py\s+(?:install|develop))\b"
)
# The beginning of a command at which a condition of a shell begins, goes on or ends.
_KEYWORD = re.compile(r"\W*(?:RUN\s+|then\s+|do\s+)*(if(?!.*:\s*$)|elif|else(?!:)|fi)\b")
_INSTALLING = ("pip", "conda", "include")
_FENCE = re.compile(r"\s*(?:```|~~~)")
_CODE_SPAN = re.compile(r"`([^`]+)`")

# The statements of a condition's branches.
Condition = list[list[Statement]]


def statements(file: str, text: str, selection: Selection) -> list[Statement]:
    """What a Dockerfile, a definition of Apptainer or a shell script states."""
    variables: dict[str, str] = {}
    stages = set()
    conditions: list[Condition] = []
    open_conditions: list[Condition] = []
    result: list[Statement] = []
    for number, line in _logical_lines(text):
        line = _VARIABLE.sub(lambda name: variables.get(name[1], name[2] or name[0]), line.strip())
        image = _IMAGE.fullmatch(line)
        if image and image[1] not in stages:
            result += _image(image[1], file, number)
        if image and image[2]:
            stages.add(image[2])
        if _ASSIGNING.match(line):
            line = re.sub(r"^ENV\s+(\w+)\s+(\S+)$", r"ENV \1=\2", line)
            for name, _, value in _ASSIGNMENT.findall(line):
                variables[name] = value
                if option := _INDEX_VARIABLE.fullmatch(name):
                    tokens = f"--{option[1].lower().replace('_', '-')} {value}"
                    result += parse_lines(tokens, file, number)
        if line.startswith("RUN ["):
            line = shlex.join(re.findall(r"\"([^\"]*)\"", line))
        for command in _SEPARATOR.split(line):
            keyword = _KEYWORD.match(command)
            if keyword and keyword[1] == "if":
                conditions.append([[]])
                open_conditions.append(conditions[-1])
            elif keyword and keyword[1] == "fi":
                open_conditions[-1:] = []
            elif keyword and open_conditions:
                open_conditions[-1].append([])
            installed = list(_installed(command, file, number))
            result += installed
            for condition in open_conditions:
                condition[-1] += installed
    for condition in conditions:
        result = _with_alternatives_as_notes(result, condition)
    return result


def _with_alternatives_as_notes(
    statements: Sequence[Statement], condition: Condition
) -> list[Statement]:
    """The statements, with notes for what one branch installs and another one does not. Builds of
    torch stay: they contradict each other."""
    names = [{_name(item) for item in branch if item.kind in _INSTALLING} for branch in condition]
    installing = list(filter(None, names))
    everywhere = set.intersection(*installing) if installing else set()
    alternatives = {
        item
        for branch in condition
        for item in branch
        if item.kind in _INSTALLING and _name(item) not in {*everywhere, *OF_TORCH}
    }
    result = []
    for statement in statements:
        if statement in alternatives and len(installing) > 1:
            reason = "another branch of the condition installs other packages"
            option = {"conda": "--conda ", "include": "-r "}.get(statement.kind, "")
            step = f"provision add NAME {option}{shlex.quote(statement.value)}"
            statement = statement.because(reason, step, kind="note")
        result.append(statement)
    return result


def _name(statement: Statement) -> str:
    """The package or file that a statement installs."""
    return statement.value if statement.kind == "include" else package_name(statement.value)


def readme_statements(file: str, text: str, selection: Selection) -> list[Statement]:
    """What a README's code blocks, code spans and indented lines install. Files that it names are
    notes: it may name one for each build."""
    stated: list[Statement] = []
    in_block = False
    for number, line in _logical_lines(text):
        if _FENCE.match(line):
            in_block = not in_block
        elif in_block or line.startswith(("    ", "\t", "$ ")):
            stated += _installed(line, file, number)
        else:
            for span in _CODE_SPAN.findall(line):
                stated += _installed(span, file, number)
    result = []
    for statement in stated:
        if statement.kind == "include":
            step = f"provision import {shlex.quote(statement.value)}"
            statement = statement.because("it is read by itself", step, kind="note")
        result.append(statement)
    return result


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments, continued ones joined, each with the number of its first."""
    first, joined = 0, ""
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.lstrip().startswith("#"):
            continue
        first = first if joined else number
        joined += _COMMENT.sub("", line).rstrip()
        if joined.endswith("\\"):
            joined = joined.removesuffix("\\") + " "
        else:
            yield first, joined
            joined = ""


def _image(image: str, file: str, line: int) -> list[Statement]:
    """What the name of a base image states about torch, CUDA or Python."""
    note = Statement(file=file, line=line, text=f"FROM {image}", kind="note")
    stated = []
    for tag, kind, value, *reason in table("images"):
        match = re.match(tag, image)
        if match:
            value = match.expand(value)
            requirement = parse_lines(value)[0].requirement if kind == "pip" else None
            statement = note.because("".join(reason), kind=kind)
            stated.append(replace(statement, value=value, requirement=requirement))
    return stated or [note.because("its tag names no release of PyTorch, CUDA or Python")]


def _installed(commands: str, file: str, line: int) -> Iterator[Statement]:
    """What commands of a shell install by pip and conda."""
    for command in _SEPARATOR.split(commands):
        if _PROJECT.search(command):
            statement = Statement(file=file, line=line, text=command.strip(), kind="unknown")
            yield statement.because("it installs what the project's files state", "provision init")
        tool = _INSTALL.search(command)
        if tool:
            yield from _packages(command[tool.end() :], file, line, is_pip=bool(tool[1]))


def _packages(arguments: str, file: str, line: int, *, is_pip: bool) -> Iterator[Statement]:
    try:
        tokens = iter(shlex.split(arguments))
    except ValueError:
        tokens = iter(arguments.split())
    options = table("install_options")
    for token in tokens:
        kind: Kind = "conda"
        if token.startswith("("):
            break  # a remark, as READMEs have them in their code
        if token in options["with_value"]:
            next(tokens, None)
            continue
        if token in options["pip" if is_pip else "conda"]:
            option, token = token, next(tokens, "")
            # A file that was copied into the image, by its name in the project.
            token = PurePosixPath(token).name if token.startswith("/") else token
            kind = options["conda"].get(option, kind)
            token = f"{option} {token}" if is_pip else token
        elif token.startswith("-") and token.partition("=")[0] not in options["pip"]:
            continue
        if is_pip:
            yield from parse_lines(token, file, line)
        else:
            yield Statement(file=file, line=line, text=token, kind=kind, value=token)
