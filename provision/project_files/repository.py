"""Which files of a repository are read, in which order, and what one adds to those before it.

The first leading file that requests something leads. Each further one adds the packages that no
earlier one requests. Files of a Python version add that.

Texts for people or for containers (a README, a Dockerfile, a script) follow. Where no earlier file
requests packages, the first text that does leads. Else its lines about torch, CUDA and Python count
as far as they agree with all others. Its other lines are notes, about packages that no file requests.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath

from provision.core.package_names import package_name
from provision.core.statements import Statement
from provision.project_files.decision import COMPANIONS, TORCH
from provision.project_files.requirements import shell_words
from provision.project_files.rules import table

_REQUESTS = ("pip", "conda")
_OF_TORCH = (*TORCH, *COMPANIONS, "pytorch-cuda", "cudatoolkit", "cuda-version", "cpuonly")


def files_to_read(names: Collection[str], further: str = "") -> tuple[str, ...]:
    """The files that are read, in their order. names: of all files in the repository's folder.
    further: one that is read after those that lead.

    A file of requirements with another name is read if it is the only one that states packages.
    """
    rules = table("files")
    files = [name for name in rules["leading"] if name in names]
    if not files:
        files = [name for name in rules["locks"] if name in names][:1]
    files += [further] if further else []
    files += [name for name in rules["python"] if name in names]
    # README.md before its translations, README-ja.md and README_zh.md.
    shortest_first = sorted(names, key=lambda name: (len(name), name))
    for pattern in rules["texts"]:
        files += fnmatch.filter(shortest_first, pattern)
        files += [name for name in shortest_first if name == f".devcontainer/{pattern}"]
    unread = unread_files(names, files)
    if not files and len(unread) == 1:
        files += unread
    return tuple(dict.fromkeys(files))


def requirements_file(lines: Collection[str]) -> str:
    """The file of requirements in which all of some lines are (`FILE:LINE TEXT`); empty if they are
    in others too, or if its name says that it is for tests and the like."""
    names = {line.partition(":")[0] for line in lines}
    name = names.pop() if len(names) == 1 else ""
    return name if re.fullmatch(table("files")["further"], name) else ""


def is_usual(name: str) -> bool:
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


def releases_in_notes(statements: Iterable[Statement]) -> Iterator[str]:
    """Lines that name a release of PyTorch and do not count: `FILE:LINE TEXT`."""
    for item in statements:
        is_offer = " --extra " in item.next_step or " --group " in item.next_step
        if (is_offer or item.kind == "note") and re.search(table("mentions")["release"], item.text):
            step = f" ({item.next_step})" if is_offer else ""
            yield f"{item.file}:{item.line} {item.text}{step}"


def combined(files: Sequence[Sequence[Statement]], *, texts_narrow: bool = True) -> list[Statement]:
    """The statements of several files in their order, without those that an earlier file decides.

    texts_narrow: what texts install of torch counts besides the torch that an earlier file requests.
    """
    result: list[Statement] = []
    decided: dict[str, str] = {}
    for statements in files:
        read = {statement.file for statement in result}
        adds = [statement for statement in statements if statement.file not in read]
        if adds and is_text(PurePath(statements[0].file).name):
            result += _of_text(adds, result, narrows=texts_narrow)
            continue
        names: dict[str, str] = {}
        for statement in adds:
            name = _decided_name(statement)
            if name in decided:
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
    """What a text adds to the files before it. Statements of files that it includes follow its own."""
    text_file = statements[0].file
    own = {package_name(item.value) for item in earlier if item.kind == "name"}
    statements = [item for item in statements if _decided_name(item) not in own]
    requested = {
        package_name(statement.value) for statement in earlier if statement.kind in _REQUESTS
    }
    if not requested:
        yield from statements
        return
    has_torch = not requested.isdisjoint(TORCH)
    pythons = {item.value for item in statements if "python" in (_decided_name(item), item.kind)}
    has_python = "python" in requested or any(item.kind == "python" for item in earlier)
    torch_lines = {
        (item.file, item.line)
        for item in statements
        if item.kind in _REQUESTS and _is_about_torch(item)
    }
    known = {"", *requested, *table("files")["installers"]}
    unknown_in = {item.file for item in statements if _decided_name(item) not in known}
    noted: set[tuple[int | None, str]] = set()
    for statement in statements:
        requirement = statement.requirement
        name = _decided_name(statement)
        is_torch = _is_about_torch(statement)
        on_torch_line = (statement.file, statement.line) in torch_lines
        is_option = on_torch_line and statement.kind not in _REQUESTS
        counts = not has_torch or (narrows and on_torch_line)
        if (counts and (is_torch or is_option)) or statement.kind == "note":
            yield statement
        elif "python" in (name, statement.kind):
            if not has_python and len(pythons) == 1:
                yield statement
        elif statement.file != text_file or (requirement and requirement.is_path):
            continue  # of an included file, or the repository itself
        elif statement.kind == "include":
            included = os.path.normpath(PurePath(text_file).parent / statement.value)
            if included in unknown_in:
                reason = "it has packages that no other file requests"
                step = f"provision add NAME -r {shlex.quote(included)}"
                yield statement.because(reason, step, kind="note")
            elif not has_torch:
                yield statement
        elif statement.kind == "unknown":
            if statement.next_step != "provision init":
                yield statement
        elif (is_torch or name not in known) and (statement.line, statement.text) not in noted:
            noted.add((statement.line, statement.text))
            words = shell_words(requirement) if requirement else f"--conda {statement.value}"
            step = f"provision add NAME {words}"
            if is_torch:
                release = re.fullmatch(r"(?:py)?torch={1,2}(\d+(?:\.\d+)+)\S*", statement.value)
                step = f"provision init --torch {release[1]}" if release else ""
            yield statement.because(
                f"the lines of {statement.file} are notes where other files state packages",
                step,
                kind="note",
            )


def _is_about_torch(statement: Statement) -> bool:
    return statement.kind == "cuda" or (
        statement.kind in _REQUESTS and package_name(statement.value) in _OF_TORCH
    )


def _decided_name(statement: Statement) -> str:
    """The package that a statement decides. Empty for torch and its companions: statements about
    them hold together, so that one file may narrow what another leaves open."""
    if statement.kind not in _REQUESTS or statement.value.startswith(("-e ", ".", "/")):
        return ""
    name = package_name(statement.value)
    return "" if name in (*TORCH, *COMPANIONS) else name
