"""Reading the files of a project: which reader a file has, and the files that it includes."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from provision.core.errors import InvalidSpec
from provision.core.requirement_lines import PipRequirement, decode, parse_lines, read_lines
from provision.core.yaml_text import YamlError, parse_yaml, read_source
from provision.project_files import conda
from provision.project_files.requirements import requirement_statements, statements_of
from provision.project_files.statements import Statement

Reader = Callable[[str, str], list[Statement]]
_LISTED = re.compile(r"[\w.-]+=[^=\s]+=[^=\s]+")


def read_file(path: Path) -> list[Statement]:
    """What a file states, and the files that it includes.

    Raises InvalidSpec if it cannot be read, or is of no known kind.
    """
    return list(_statements(path, ()))


def _statements(path: Path, including: tuple[Path, ...]) -> Iterator[Statement]:
    resolved = path.resolve()
    if resolved in including:
        raise InvalidSpec(f"{path} includes itself.", advice="Remove one of the inclusions.")
    try:
        text = decode(read_source(path))
    except (OSError, YamlError, ValueError) as error:
        reason = error.problem if isinstance(error, YamlError) else str(error)
        raise InvalidSpec(
            f"{path} cannot be read: {reason}.", advice="Correct the file."
        ) from error
    reader = _reader(path, text)
    if reader is requirement_statements and not _is_table(text):
        statements = statements_of(read_lines(path))
        for statement in statements:
            yield dataclasses.replace(statement, file=_shown(Path(statement.file)))
        return
    for statement in reader(_shown(path), text):
        yield _located(statement, path.parent)
        if statement.kind in ("include", "constraints"):
            for included in _statements(path.parent / statement.value, (*including, resolved)):
                is_limit = statement.kind == "constraints" and included.kind == "pip"
                yield dataclasses.replace(included, kind="constraint") if is_limit else included


def _reader(path: Path, text: str) -> Reader:
    if path.suffix in (".yml", ".yaml", ".json"):
        return _yaml_reader(path, text)
    if conda.EXPLICIT.search(text):
        return conda.explicit_statements
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    is_listed = bool(lines) and all(_LISTED.fullmatch(line.strip()) for line in lines)
    if conda.LIST_HEADER.search(text) or is_listed:
        return conda.list_statements
    return requirement_statements


def _yaml_reader(path: Path, text: str) -> Reader:
    try:
        document = parse_yaml(text)
    except YamlError:
        return conda.environment_statements  # it says what is wrong
    if isinstance(document, dict) and isinstance(document.get("package"), list):
        return conda.lock_statements
    if isinstance(document, dict) and "environments" in document and "packages" in document:
        raise InvalidSpec(
            f"{path} is a pixi.lock, which holds everything that was installed.",
            advice=f"provision import {_shown(path.with_name('pixi.toml'))}",
        )
    return conda.environment_statements


def _is_table(text: str) -> bool:
    """Whether it is what `pip list` printed, which has no line that pip reads."""
    return bool(re.match(r"\s*Package\s+Version\b", text))


def _located(statement: Statement, folder: Path) -> Statement:
    """The statement with an absolute path, if it requests one."""
    if statement.kind != "pip":
        return statement
    requirement = parse_lines(statement.value)[0].requirement
    if requirement is None or not requirement.is_path or "://" in requirement.source:
        return statement
    source = os.path.normpath(folder / Path(requirement.source.removeprefix("file:")).expanduser())
    value = str(dataclasses.replace(requirement, source=str(Path(source).absolute())))
    return dataclasses.replace(statement, value=value)


def _shown(path: Path) -> str:
    """A path as the user would name it from here."""
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def editable_requirement(requirement: PipRequirement) -> str:
    """The requirement of spec.yml for a project's folder, with its absolute path; empty if only
    running the project's code would tell its name."""
    name = project_name(Path(requirement.source.removeprefix("file://").removeprefix("file:")))
    if not name:
        return ""
    extras = f"[{','.join(requirement.extras)}]" if requirement.extras else ""
    return f"{name}{extras} @ file:{requirement.source.removeprefix('file://')}"


def project_name(folder: Path) -> str:
    """The name of the project in a folder, as its files state it; empty if they do not."""
    for file in ("pyproject.toml", "setup.cfg", "setup.py"):
        path = folder / file
        if path.is_file():
            try:
                statements = read_file(path)
            except InvalidSpec:
                continue
            for statement in statements:
                if statement.kind == "name":
                    return statement.value
    return ""
