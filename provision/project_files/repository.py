"""Which files of a repository are read, in which order, and what one adds to those before it.

The first leading file that requests something leads. Each further one adds the packages that no
earlier one requests. Files of a Python version add that. A Dockerfile is read as notes, unless it is
the only file.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from provision.core.package_names import package_name
from provision.core.statements import Statement
from provision.project_files.decision import COMPANIONS, TORCH
from provision.project_files.rules import table

DOCKERFILE = "Dockerfile"
_REQUESTS = ("pip", "conda")


def files_to_read(names: Collection[str]) -> tuple[str, ...]:
    """The files that are read, in their order. names: of all files in the repository's folder."""
    rules = table("files")
    files = [name for name in rules["leading"] if name in names]
    if not files:
        files = [name for name in rules["locks"] if name in names][:1]
    return (*files, *(name for name in (*rules["python"], DOCKERFILE) if name in names))


def is_usual(name: str) -> bool:
    """Whether a file of this name belongs to the folder that it is in."""
    rules = table("files")
    return name in (*rules["leading"], *rules["python"], DOCKERFILE)


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


def combined(files: Sequence[Sequence[Statement]]) -> list[Statement]:
    """The statements of several files in their order, without those that an earlier file decides."""
    result: list[Statement] = []
    decided: dict[str, str] = {}
    for statements in files:
        read = {statement.file for statement in result}
        adds = [statement for statement in statements if statement.file not in read]
        is_note = bool(statements) and statements[0].file.endswith(DOCKERFILE) and bool(result)
        names: dict[str, str] = {}
        noted: set[tuple[int | None, str]] = set()
        for statement in adds:
            name = _decided_name(statement)
            if is_note and statement.kind != "unknown":
                if (statement.line, statement.text) in noted:
                    continue
                noted.add((statement.line, statement.text))
                statement = replace(
                    statement,
                    kind="note",
                    reason="a Dockerfile's lines are notes where other files state packages",
                    next_step=f"provision import {statements[0].file} --dry-run",
                )
            elif name in decided:
                reason = f"{decided[name]} requests {name} already"
                statement = replace(statement, kind="ignored", reason=reason)
            elif name:
                names[name] = statement.file
            result.append(statement)
        decided |= names
    return result


def _decided_name(statement: Statement) -> str:
    """The package that a statement decides. Empty for torch and its companions: statements about
    them hold together, so that one file may narrow what another leaves open."""
    if statement.kind not in _REQUESTS or statement.value.startswith(("-e ", ".", "/")):
        return ""
    name = package_name(statement.value)
    return "" if name in (*TORCH, *COMPANIONS) else name
