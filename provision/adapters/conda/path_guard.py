"""Conda packages that would write outside of their environment: looked at when they are unpacked and before they are linked.

rattler 0.28 unpacks an archive safely (tried: absolute names, `..`, links that are written through, hard links), but believes what
info/paths.json lists: a name with `..` is written where it leads, an absolute one aborts the process, and so is a link to a folder
followed by whatever package has a file below it.
"""

from __future__ import annotations

import json
import posixpath
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Guard:
    """For one transaction. refused: what was wrong, by the name of the file of the package."""

    def __init__(self, cache: Path, files: dict[str, str], final: Path) -> None:
        """files: of each package by its name. final: where the environment will be."""
        self._cache, self._files, self._final = cache, files, final
        self.refused: dict[str, str] = {}

    def look(self, package: str) -> None:
        """Called by rattler's threads before each package is linked. One that is refused loses what rattler reads next, so that linking it
        fails; what our exceptions would not do."""
        file = self._files.get(package)
        if file is None:
            return
        unpacked = self._cache / file.removesuffix(".conda").removesuffix(".tar.bz2")
        wrong = next(_wrong(unpacked, self._final), None)
        if wrong is not None:
            self.refused[file] = wrong
            shutil.rmtree(unpacked / "info")


def _wrong(unpacked: Path, final: Path) -> Iterator[str]:
    try:
        for path in _listed(unpacked):
            if _leads_out(path):
                yield f"lists {path}, which is outside of every environment"
            elif not (unpacked / path).parent.resolve().is_relative_to(unpacked.resolve()):
                yield f"lists {path}, which lies behind a link out of the package"
            elif (unpacked / path).is_symlink() and _is_outer_folder(
                str((unpacked / path).readlink()), path, final
            ):
                yield f"has {path}, a link to the folder {(unpacked / path).readlink()} outside of the environment"
        for command in _commands(unpacked):
            if "/" in command:
                yield f"has a command called {command}"
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        yield f"has documents that cannot be read ({error})"


def _listed(unpacked: Path) -> Iterator[str]:
    """paths.json, or in old packages a list of names."""
    document = _document(unpacked / "info" / "paths.json")
    if document is not None:
        yield from (str(row["_path"]) for row in document["paths"])
    elif (unpacked / "info" / "files").is_file():
        yield from (unpacked / "info" / "files").read_text(encoding="utf-8").splitlines()


def _commands(unpacked: Path) -> Iterator[str]:
    """Scripts that linking makes: `name = module:function`."""
    document = _document(unpacked / "info" / "link.json") or {}
    for entry in (document.get("noarch") or {}).get("entry_points") or ():
        yield str(entry).partition("=")[0].strip()


def _document(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _leads_out(path: str) -> bool:
    return path.startswith("/") or ".." in path.split("/")


def _is_outer_folder(target: str, path: str, final: Path) -> bool:
    """A link to a file is only read; below a folder, the files of other packages would be written."""
    whole = posixpath.normpath(posixpath.join(str(final), posixpath.dirname(path), target))
    return not Path(whole).is_relative_to(final) and Path(whole).is_dir()
