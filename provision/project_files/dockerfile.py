"""A Dockerfile's base image, and what its pip and conda lines install."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath

from provision.core.credentials import public_request
from provision.core.requirement_lines import parse_lines
from provision.core.statements import Kind, Statement
from provision.project_files.rules import table
from provision.project_files.toml_file import Selection

INDEX_VARIABLE = re.compile(r"(?:PIP|UV)_(INDEX_URL|EXTRA_INDEX_URL|FIND_LINKS)")
_EXEC_FORM = re.compile(r"\[\s*\".*\]", re.DOTALL)
_HERE_DOCUMENT = re.compile(r"<<-?[\"']?([A-Za-z_]\w*)")
_VARIABLE = re.compile(r"\$\{?(\w+)(?::-([^}]*))?\}?")
_INSTALL = re.compile(
    r"(?:^|[\s/])(?:(pip)[\d.]*\s+(?:-\S+\s+)?install|(?:conda|(?:micro)?mamba)\s+(?:\S+\s+)?"
    r"(?:install|create|(?<=env )update))\s"
)
_PROJECT = re.compile(
    r"(?:^|[\s/])(?:(?:poetry|pdm|pipenv|pixi|uv|rye)\s+(?:install|sync)"
    r"|setup\.py\s+(?:install|develop))\b"
)


def statements(file: str, text: str, selection: Selection | None = None) -> list[Statement]:
    """What a Dockerfile states. Instructions that install no packages state nothing."""
    variables: dict[str, str] = {}
    stages: set[str] = set()
    result: list[Statement] = []
    for line, instruction, rest in _instructions(text):
        rest = with_variables(rest, variables)
        if instruction in ("ARG", "ENV"):
            for name, value in _assignments(rest):
                if value:
                    variables[name] = value
                if option := INDEX_VARIABLE.fullmatch(name):
                    text = f"--{option[1].lower().replace('_', '-')} {value}"
                    result += parse_lines(text, file, line)
        elif instruction == "FROM":
            words = [word for word in rest.split() if not word.startswith("--")]
            if words and words[0] not in stages:
                result += image_statements(words[0], file, line)
            stages.update(words[2:3])
        elif instruction == "RUN":
            if _EXEC_FORM.fullmatch(rest.strip()):
                rest = shlex.join(re.findall(r"\"([^\"]*)\"", rest))
            result += installed_by(rest, file, line)
    return result


def installed_by(commands: str, file: str, line: int) -> list[Statement]:
    """What commands of a shell install by pip and conda; nothing for any other command."""
    result: list[Statement] = []
    for command in re.split(r"&&|\n|\|\|?|;(?!\s*(?:python|sys|platform|os)_)", commands):
        result += _command(file, line, command)
    return result


def with_variables(text: str, variables: Mapping[str, str]) -> str:
    """A text with the values of the variables that are known."""
    return _VARIABLE.sub(lambda match: variables.get(match[1], match[2] or match[0]), text)


def _instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Each instruction with the number of its first line, and its arguments in one line; those of a
    here-document in lines."""
    continued = end = ""
    first = 1
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("#") and number < len(lines):
            continue
        first = first if continued else number
        continued += line.strip().removesuffix("\\") + " "
        document = _HERE_DOCUMENT.search(line)
        if end and line.strip() != end and number < len(lines):
            continued += "" if line.rstrip().endswith("\\") else "\n"
        elif document and not end:
            end = document[1]
            continued += "\n"
        elif not line.rstrip().endswith("\\"):
            instruction, _, rest = continued.strip().partition(" ")
            yield first, instruction.upper(), rest
            continued = end = ""


def _assignments(rest: str) -> Iterator[tuple[str, str]]:
    """The variables of an ARG or ENV: `A=1 B=2`, or `A 1` of old."""
    first, _, value = rest.strip().partition(" ")
    words = re.findall(r"(?:\"[^\"]*\"|'[^']*'|\S)+", rest)
    for word in words if "=" in first else [f"{first}={value}"]:
        name, _, value = word.partition("=")
        yield name, value.strip("\"' ")


def image_statements(image: str, file: str, line: int) -> list[Statement]:
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


def _command(file: str, line: int, command: str) -> Iterator[Statement]:
    """What a command of pip or conda installs; nothing for any other command."""
    if _PROJECT.search(command):
        statement = Statement(file=file, line=line, text=command.strip(), kind="unknown")
        yield statement.because("it installs what the project's files state", "provision init")
    tool = _INSTALL.search(command)
    if tool is None:
        return
    arguments = command[tool.end() :]
    try:
        words = shlex.split(arguments)
    except ValueError:
        words = arguments.split()
    is_pip = bool(tool[1])
    options = table("install_options")
    pending = iter(words)
    for word in pending:
        kind: Kind = "conda"
        if word.startswith("("):
            break  # a remark, as READMEs have them in their code
        if word in options["with_value"]:
            next(pending, None)
            continue
        if word in options["pip" if is_pip else "conda"]:
            option, word = word, next(pending, "")
            # A file that was copied into the image, by its name in the project.
            word = PurePosixPath(word).name if word.startswith("/") else word
            kind = options["conda"].get(option, kind)
            word = f"{option} {word}" if is_pip else word
        elif word.startswith("-") and word.partition("=")[0] not in options["pip"]:
            continue
        if is_pip:
            yield from parse_lines(word, file, line)
        else:
            text = public_request(word)
            yield Statement(file=file, line=line, text=text, kind=kind, value=text)
