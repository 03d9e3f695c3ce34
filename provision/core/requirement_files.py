"""Files of pip's requirement lines, with the files that they include.

What a line states is in `requirement_lines`.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from provision.core.errors import InvalidSpec
from provision.core.statements import Kind, Statement
from provision.core.yaml_text import YamlError, read_source

Reader = Callable[[Path, str], Iterable[Statement]]
_UNREADABLE = (OSError, ValueError, YamlError)


def decode(content: bytes) -> str:
    """The text of a file: UTF-16 with a byte order mark, else UTF-8. Raises ValueError for other
    encodings, with the conversion."""
    is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = content.decode("utf-16" if is_utf16 else "utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise ValueError("it is not text in UTF-8; `iconv -f ENCODING -t UTF-8` converts it")
    return text


def read_files(path: Path, read: Reader) -> Iterator[Statement]:
    """What a file states, and the files that it includes. read: of a file's path and text.

    Each file is read once, however many include it. A path in it is absolute then; a relative one
    starts at the file's folder, or at the nearest one above it that has such a project or file. What
    cannot be included is unknown. Raises InvalidSpec if the file itself cannot be read.
    """
    try:
        yield from _statements(path, read, (), set())
    except _UNREADABLE as error:
        raise InvalidSpec(
            f"{path} cannot be read: {error}.", advice="Correct the file, or name another one."
        ) from error


def _statements(
    path: Path,
    read: Reader,
    including: tuple[Path, ...],
    complete: set[Path],
    *,
    limits: bool = False,
) -> Iterator[Statement]:
    """including: the files that led here; complete: those that were read to their end. Both as
    resolved paths: `a/../b.txt` is `b.txt`. limits: by -c. Raises one of _UNREADABLE."""
    resolved, folder = path.resolve(), path.absolute().parent
    if resolved in including:
        raise ValueError("it includes itself")
    if resolved in complete:
        return
    # Who names a pipe on the command line waits for it; a file that names one must not make others wait.
    if including and not path.is_file():
        raise ValueError("there is no such file")
    for entry in read(path, decode(read_source(path))):
        if entry.kind in ("include", "constraints"):
            try:
                if "://" in entry.value:
                    raise ValueError("it is an address; download the file and name that")
                included = path.parent / Path(entry.value).expanduser()
                if not included.is_file():  # scripts in a folder are run in that above it
                    upper = path.absolute().parent.parent / entry.value
                    included = upper if upper.is_file() else included
                is_limit = limits or entry.kind == "constraints"
                files = (*including, resolved)
                entries = list(_statements(included, read, files, complete, limits=is_limit))
                yield from [entry, *entries]
            except _UNREADABLE as error:
                yield replace(entry, kind="unknown", reason=f"the file cannot be read: {error}")
        elif entry.kind == "find-links" and (folder / entry.value).exists():
            yield replace(entry, value=os.path.normpath(folder / entry.value))
        elif entry.kind == "pip":
            yield _located(entry, folder, "constraint" if limits else "pip")
        else:
            yield entry
    complete.add(resolved)


def _located(entry: Statement, folder: Path, kind: Kind) -> Statement:
    """The entry with an absolute path, if its requirement is one: from the file's folder, or from one
    above it in its repository, or up to the working folder."""
    requirement = entry.requirement
    if requirement is None or not requirement.is_path or "://" in requirement.source:
        return replace(entry, kind=kind)
    # `Path.expanduser` raises for a user that does not exist.
    written = Path(os.path.expanduser(requirement.source.removeprefix("file:")))  # noqa: PTH111
    path = folder / written
    folders = (folder, *folder.parents)
    repository = next((start for start in folders if (start / ".git").exists()), Path.cwd())
    for start in folders if repository in folders else (folder,):
        if is_installable(start / written):
            path = start / written
            break
        if start == repository:
            break
    requirement = replace(requirement, source=os.path.normpath(path))
    return replace(entry, kind=kind, value=str(requirement), requirement=requirement)


def is_installable(path: Path) -> bool:
    """Whether a path is a file, or the folder of a project."""
    projects = ("pyproject.toml", "setup.py", "setup.cfg")
    return path.is_file() or any((path / name).is_file() for name in projects)
