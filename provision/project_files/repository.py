"""Which files of a repository are read, in which order, and what one adds to those before it.

The first leading file that requests something leads. Each further one adds the packages that no
earlier one requests. Files of a Python version add that.

Texts for people or for containers (a README, a Dockerfile, a script) follow. Where no earlier file
requests packages, the first text that does leads. Else its lines that install torch count as far as
they agree with all others, and those about Python where no file states it. The rest are notes.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath

from provision.core.package_names import package_name
from provision.core.statements import Statement
from provision.project_files.decision import COMPANIONS, OF_TORCH, TORCH
from provision.project_files.requirements import shell_words
from provision.project_files.rules import table

_REQUESTS = ("pip", "conda")
_OF_BUILDS = ("cuda", "index", "extra-index", "find-links")


def files_to_read(names: Collection[str]) -> tuple[str, ...]:
    """The files that are read, in their order. names: of all files in the repository's folder.

    A file of requirements with another name is read if it is the only one that states packages.
    """
    rules = table("files")
    files = [name for name in rules["leading"] if name in names]
    if not files:
        files = [name for name in rules["locks"] if name in names][:1]
    files += [name for name in rules["python"] if name in names]
    # README.md before its translations, README-ja.md and README_zh.md.
    shortest_first = sorted(names, key=lambda name: (len(name), name))
    for pattern in rules["texts"]:
        files += fnmatch.filter(shortest_first, pattern)
    unread = unread_files(names, files)
    if not files and len(unread) == 1:
        files += unread
    return tuple(dict.fromkeys(files))


def is_project_file(name: str) -> bool:
    """Whether a file of this name belongs to the folder that it is in."""
    rules = table("files")
    return name in (*rules["leading"], *rules["python"]) or is_text(name)


def is_text(name: str) -> bool:
    """Whether a file of this name is for people or for a container."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in table("files")["texts"])


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


def combined(files: Sequence[Sequence[Statement]], *, texts_narrow: bool = True) -> list[Statement]:
    """The statements of several files in their order, without those that an earlier file decides.

    texts_narrow: what texts install of torch counts besides the torch that an earlier file requests.
    """
    result: list[Statement] = []
    decided: dict[str, str] = {}
    for statements in files:
        read = {statement.file for statement in result}
        adds = [statement for statement in statements if statement.file not in read]
        is_first = not any(statement.kind in _REQUESTS for statement in result)
        if adds and not is_first and is_text(PurePath(statements[0].file).name):
            result += list(_of_text(adds, result, narrows=texts_narrow))
            continue
        names: dict[str, str] = {}
        for statement in adds:
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


def _of_text(
    statements: Sequence[Statement], earlier: Sequence[Statement], *, narrows: bool
) -> Iterator[Statement]:
    """What a text adds to the files before it: torch with its CUDA, and Python. All else is a note."""
    decided = {package_name(item.value) for item in earlier if item.kind in (*_REQUESTS, "name")}
    read_names = {"", *decided, *table("files")["installers"]}
    has_torch = not decided.isdisjoint(TORCH)
    torch_lines = {(item.file, item.line) for item in statements if _package(item) in OF_TORCH}
    has_python = any(_package(item) == "python" for item in earlier)
    pythons = {item.value for item in statements if _package(item) == "python"}
    for statement in statements:
        name, requirement = _package(statement), statement.requirement
        if statement.next_step == "provision init" or (requirement and requirement.is_path):
            continue  # the repository itself
        if name == "python":
            counts, is_build = not has_python and len(pythons) == 1, True
        else:
            is_build = name in OF_TORCH or statement.kind in _OF_BUILDS
            narrows_torch = narrows and (statement.file, statement.line) in torch_lines
            counts = is_build and (narrows_torch or not has_torch)
        if counts or statement.kind in ("note", "unknown", "include"):
            yield statement
        elif is_build or name not in read_names:
            tokens = shell_words(requirement) if requirement else f"--conda {statement.value}"
            yield statement.because(
                f"the lines of {statement.file} are notes where other files state packages",
                "" if is_build else f"provision add NAME {tokens}",
                kind="note",
            )


def _package(statement: Statement) -> str:
    """The package that a statement decides; empty for the folder of a project."""
    if statement.kind == "python":
        return "python"
    if statement.kind not in _REQUESTS or statement.value.startswith(("-e ", ".", "/")):
        return ""
    return package_name(statement.value)
