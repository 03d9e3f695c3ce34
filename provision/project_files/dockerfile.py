"""A Dockerfile's base image, and what its pip and conda lines install."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from provision.core.credentials import public_request
from provision.core.requirement_lines import parse_lines
from provision.project_files.requirements import statements_of
from provision.project_files.statements import Kind, Statement
from provision.project_files.toml_file import Selection

_VARIABLE = re.compile(r"\$\{?(\w+)(?::-([^}]*))?\}?")
# Tags of images that name a build: pytorch/pytorch:2.3.1-cuda12.1-cudnn8-devel, and so on.
_IMAGES: tuple[tuple[re.Pattern[str], Kind, str], ...] = (
    (re.compile(r"(?:.*/)?pytorch/pytorch:(\d+(?:\.\d+)+)"), "pip", r"torch==\1"),
    (re.compile(r"(?:.*/)?pytorch/pytorch:[\d.]+-cuda(\d+\.\d+)"), "cuda", r"\1"),
    (re.compile(r"(?:.*/)?nvidia/cuda:(\d+\.\d+)"), "cuda", r"\1"),
    (re.compile(r"(?:.*/)?python:(\d+\.\d+)"), "python", r"==\1.*"),
)
# pip's and conda's options that take a value, beyond those of a requirement's line.
_WITH_VALUE = {"-t", "--target", "--timeout", "--progress-bar", "--retries", "--prefix", "--root"}
_WITH_VALUE |= {"-n", "--name", "-p", "--cache-dir", "--platform", "--python", "--python-version"}
_LINE_OPTIONS = {"-r", "--requirement", "-c", "--constraint", "-e", "--editable", "-f"}
_LINE_OPTIONS |= {"--find-links", "-i", "--index-url", "--extra-index-url"}


def statements(file: str, text: str, selection: Selection | None = None) -> list[Statement]:
    """What a Dockerfile states. Instructions that install no packages state nothing."""
    variables: dict[str, str] = {}
    stages: set[str] = set()
    result: list[Statement] = []
    for number, line in _instructions(text):
        instruction, _, rest = line.partition(" ")
        rest = _VARIABLE.sub(lambda match: variables.get(match[1], match[2] or match[0]), rest)
        if instruction.upper() == "ARG":
            name, _, value = rest.partition("=")
            variables.setdefault(name.strip(), value.strip("\"' "))
        elif instruction.upper() == "FROM":
            words = [word for word in rest.split() if not word.startswith("--")]
            if words and words[0] not in stages:
                result += _image(file, number, words[0])
            stages.update(words[2:3])
        elif instruction.upper() == "RUN":
            for command in re.split(r"&&|\|\|?|;(?!\s*(?:python|sys|platform|os)_)", rest):
                result += _command(file, number, command.strip())
    return result


def _instructions(text: str) -> Iterator[tuple[int, str]]:
    """Instructions with their continuation lines, each with the number of its first line."""
    parts: list[str] = []
    first = 1
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#"):
            continue
        if not parts:
            first = number
        parts.append(line.rstrip().removesuffix("\\").strip())
        if not line.rstrip().endswith("\\"):
            yield first, " ".join(parts).strip()
            parts = []
    if parts:
        yield first, " ".join(parts)


def _image(file: str, line: int, image: str) -> Iterator[Statement]:
    text, matched = f"FROM {image}", False
    for pattern, kind, value in _IMAGES:
        match = pattern.match(image)
        if match:
            matched = True
            yield Statement(file=file, line=line, text=text, kind=kind, value=match.expand(value))
    if not matched:
        reason = "its tag names no release of PyTorch, CUDA or Python"
        yield Statement(file=file, line=line, text=text, kind="note", reason=reason)


def _command(file: str, line: int, command: str) -> list[Statement]:
    """What a command of pip or conda installs; nothing for any other command."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    for position, word in enumerate(words):
        tool = PurePosixPath(word).name
        if re.fullmatch(r"pip[\d.]*", tool) and "install" in words[position + 1 : position + 3]:
            install = words.index("install", position)
            return _pip(file, line, words[install + 1 :])
        if tool in ("conda", "mamba", "micromamba"):
            return _conda(file, line, command, words[position + 1 :])
    return []


def _pip(file: str, line: int, words: Sequence[str]) -> list[Statement]:
    result: list[Statement] = []
    pending = iter(words)
    for word in pending:
        option, equals, _ = word.partition("=")
        if word in _LINE_OPTIONS:
            word = f"{word} {_in_project(next(pending, ''))}"
        elif word in _WITH_VALUE:
            next(pending, None)
            continue
        elif word.startswith("-") and not (equals and option in _LINE_OPTIONS):
            continue
        result += statements_of(parse_lines(word), file=file, line=line)
    return result


def _conda(file: str, line: int, command: str, words: Sequence[str]) -> list[Statement]:
    if not {"install", "create"}.intersection(words[:2]):
        return []
    result: list[Statement] = []
    pending = iter(words)
    for word in pending:
        kind: Kind = "conda"
        if word in ("-c", "--channel"):
            kind, word = "channel", next(pending, "")
        elif word in ("-f", "--file"):
            kind, word = "include", _in_project(next(pending, ""))
        elif word in _WITH_VALUE:
            next(pending, None)
            continue
        elif word.startswith("-") or word in ("install", "create", "env"):
            continue
        text = public_request(word)
        result.append(Statement(file=file, line=line, text=text, kind=kind, value=text))
    return result


def _in_project(path: str) -> str:
    """A file that was copied into the image, by its name in the project."""
    return PurePosixPath(path).name if path.startswith("/") else path
