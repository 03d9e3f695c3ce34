"""A Dockerfile's base image, and what its pip and conda lines install."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePosixPath

from provision.core.credentials import public_request
from provision.core.requirement_lines import parse_lines
from provision.core.statements import Kind, Statement
from provision.project_files.toml_file import Selection

_VARIABLE = re.compile(r"\$\{?(\w+)(?::-([^}]*))?\}?")
_INSTALL = re.compile(
    r"(?:^|[\s/])(?:(pip)[\d.]*\s+(?:-\S+\s+)?install|(?:conda|(?:micro)?mamba)\s+(?:\S+\s+)?"
    r"(?:install|create))\s"
)
# Tags of images that name a build: pytorch/pytorch:2.3.1-cuda12.1-cudnn8-devel, and so on.
_IMAGES: tuple[tuple[str, Kind, str], ...] = (
    (r"(?:.*/)?pytorch/pytorch:(\d+(?:\.\d+)+)", "pip", r"torch==\1"),
    (r"(?:.*/)?pytorch/pytorch:[\d.]+-cuda(\d+\.\d+)", "cuda", r"\1"),
    (r"(?:.*/)?nvidia/cuda:(\d+\.\d+)", "cuda", r"\1"),
    (r"(?:.*/)?python:(\d+\.\d+)", "python", r"==\1.*"),
)
# pip's and conda's options that take a value, beyond those that install something.
_WITH_VALUE = (
    "-t",
    "--target",
    "--timeout",
    "--progress-bar",
    "--retries",
    "--prefix",
    "--root",
    "-n",
    "--name",
    "-p",
    "--cache-dir",
    "--platform",
    "--python",
    "--python-version",
)
_PIP_OPTIONS = (
    "-r",
    "--requirement",
    "-c",
    "--constraint",
    "-e",
    "--editable",
    "-f",
    "--find-links",
    "-i",
    "--index-url",
    "--extra-index-url",
)
_CONDA_OPTIONS: dict[str, Kind] = {
    "-c": "channel",
    "--channel": "channel",
    "-f": "include",
    "--file": "include",
}


def statements(file: str, text: str, selection: Selection | None = None) -> list[Statement]:
    """What a Dockerfile states. Instructions that install no packages state nothing."""
    variables: dict[str, str] = {}
    stages: set[str] = set()
    result: list[Statement] = []
    for line, instruction, rest in _instructions(text):
        rest = _VARIABLE.sub(lambda match: variables.get(match[1], match[2] or match[0]), rest)
        if instruction == "ARG":
            name, _, value = rest.partition("=")
            variables.setdefault(name.strip(), value.strip("\"' "))
        elif instruction == "FROM":
            words = [word for word in rest.split() if not word.startswith("--")]
            if words and words[0] not in stages:
                result += _image(file, line, words[0])
            stages.update(words[2:3])
        elif instruction == "RUN":
            for command in re.split(r"&&|\|\|?|;(?!\s*(?:python|sys|platform|os)_)", rest):
                result += _command(file, line, command)
    return result


def _instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Each instruction with the number of its first line, and its arguments in one line."""
    continued = ""
    first = 1
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#"):
            continue
        first = first if continued else number
        continued += line.strip().removesuffix("\\") + " "
        if not line.rstrip().endswith("\\"):
            instruction, _, rest = continued.strip().partition(" ")
            yield first, instruction.upper(), rest
            continued = ""


def _image(file: str, line: int, image: str) -> list[Statement]:
    note = Statement(file=file, line=line, text=f"FROM {image}", kind="note")
    stated = []
    for pattern, kind, value in _IMAGES:
        match = re.match(pattern, image)
        if match:
            value = match.expand(value)
            requirement = parse_lines(value)[0].requirement if kind == "pip" else None
            stated.append(replace(note, kind=kind, value=value, requirement=requirement))
    return stated or [note.because("its tag names no release of PyTorch, CUDA or Python")]


def _command(file: str, line: int, command: str) -> Iterator[Statement]:
    """What a command of pip or conda installs; nothing for any other command."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    tool = _INSTALL.search(command)
    install = next((at for at, word in enumerate(words) if word in ("install", "create")), None)
    if tool is None or install is None:
        return
    is_pip = bool(tool[1])
    pending = iter(words[install + 1 :])
    for word in pending:
        kind: Kind = "conda"
        if word in _WITH_VALUE:
            next(pending, None)
            continue
        if word in (_PIP_OPTIONS if is_pip else _CONDA_OPTIONS):
            option, word = word, next(pending, "")
            # A file that was copied into the image, by its name in the project.
            word = PurePosixPath(word).name if word.startswith("/") else word
            kind = _CONDA_OPTIONS.get(option, kind)
            word = f"{option} {word}" if is_pip else word
        elif word.startswith("-") and word.partition("=")[0] not in _PIP_OPTIONS:
            continue
        if is_pip:
            yield from parse_lines(word, file, line)
        else:
            text = public_request(word)
            yield Statement(file=file, line=line, text=text, kind=kind, value=text)
