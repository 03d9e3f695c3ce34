"""Which files of a repository are read, in which order, and what one adds to those before it.

The first leading file that requests something leads. Each further one adds the packages that no
earlier one requests. Files of a Python version add that.

A Dockerfile's lines are notes. Texts for people and scripts are not read.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from provision.core.package_names import package_name
from provision.core.statements import Statement
from provision.project_files.decision import COMPANIONS, TORCH
from provision.project_files.rules import table

_REQUESTS = ("pip", "conda")


def files_to_read(names: Collection[str]) -> tuple[str, ...]:
    """The files that are read, in their order. names: of all files in the repository's folder.

    A file of requirements with another name is read if it is the only one that states packages.
    """
    rules = table("files")
    files = [name for name in rules["leading"] if name in names]
    if not files:
        files = [name for name in rules["locks"] if name in names][:1]
    files += [name for name in rules["python"] if name in names]
    files += [name for name in rules["notes"] if name in names]
    unread = unread_files(names, files)
    if not files and len(unread) == 1:
        files += unread
    return tuple(dict.fromkeys(files))


def is_usual(name: str) -> bool:
    """Whether a file of this name belongs to the folder that it is in."""
    rules = table("files")
    return name in (*rules["leading"], *rules["python"]) or is_note(name)


def is_note(name: str) -> bool:
    """Whether the lines of a file of this name are notes."""
    return name in table("files")["notes"]


def unread_files(names: Iterable[str], read: Collection[str]) -> tuple[str, ...]:
    """The files that state packages too, and are not read."""
    return tuple(
        name
        for name in sorted(names)
        if name not in read
        and any(fnmatch.fnmatchcase(name, pattern) for pattern in table("files")["unread"])
    )


def unreadable(name: str, problem: str) -> Statement:
    """The statement about a file that cannot be read, where another one leads."""
    return Statement(file=name, line=None, text=name, kind="unknown", reason=problem.rstrip("."))


def offered_releases(statements: Iterable[Statement]) -> Iterator[str]:
    """Groups and extras that are not taken and name a release of PyTorch: `FILE:LINE TEXT`."""
    for item in statements:
        is_offer = " --extra " in item.next_step or " --group " in item.next_step
        if is_offer and re.search(table("mentions")["release"], item.text):
            yield f"{item.file}:{item.line} {item.text} ({item.next_step})"


def combined(files: Sequence[Sequence[Statement]]) -> list[Statement]:
    """The statements of several files in their order, without those that an earlier file decides."""
    result: list[Statement] = []
    decided: dict[str, str] = {}
    for statements in files:
        read = {statement.file for statement in result}
        names: dict[str, str] = {}
        for statement in statements:
            if statement.file in read:
                continue
            name = _package(statement)
            # Statements of several files about a build hold together: one may narrow another.
            if name in decided and name not in (*TORCH, *COMPANIONS, "python"):
                reason = f"{decided[name]} requests {name} already"
                statement = replace(statement, kind="ignored", reason=reason)
            elif name:
                names[name] = statement.file
            result.append(statement)
        decided |= names
    return result


def _package(statement: Statement) -> str:
    """The package that a statement decides; empty for the folder of a project."""
    if statement.kind == "python":
        return "python"
    if statement.kind not in _REQUESTS or statement.value.startswith(("-e ", ".", "/")):
        return ""
    return package_name(statement.value)
