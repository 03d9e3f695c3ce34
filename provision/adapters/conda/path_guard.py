"""Refuses conda packages that would write outside of their environment: checked when unpacked,
before they are linked.

rattler 0.28 unpacks an archive safely (tried: absolute names, `..`, links that are written through,
hard links), but believes what info/paths.json lists: a name with `..` is written where it leads, an
absolute one aborts the process, and so does a link to a folder, which is followed by whatever
package has a file below it.
"""

from __future__ import annotations

import json
import posixpath
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class PathGuard:
    """Checks the packages of one transaction. refused: the problem, by the file name of the
    package."""

    def __init__(self, cache: Path, files: dict[str, str], final: Path) -> None:
        """files: file names by package name. final: where the environment will be."""
        self._cache, self._files, self._final = cache, files, final
        self.refused: dict[str, str] = {}

    def check(self, package: str) -> None:
        """Check a package before it is linked; rattler's threads call this.

        A refused package loses its info folder, which rattler reads next: so linking it fails. Our
        exceptions would not stop it.
        """
        file = self._files.get(package)
        if file is None:
            return
        unpacked = self._cache / archive_stem(file)
        problem = next(_problems(unpacked, self._final), None)
        if problem is not None:
            self.refused[file] = problem
            shutil.rmtree(unpacked / "info")


def archive_stem(filename: str) -> str:
    """A package's file name without the archive's suffix."""
    return filename.removesuffix(".conda").removesuffix(".tar.bz2")


def _problems(unpacked: Path, final: Path) -> Iterator[str]:
    try:
        for name in _listed_paths(unpacked):
            path = unpacked / name
            if name.startswith("/") or ".." in name.split("/"):
                yield f"lists {name}, which is outside of every environment"
            elif not path.parent.resolve().is_relative_to(unpacked.resolve()):
                yield f"lists {name}, which lies behind a link out of the package"
            elif path.is_symlink() and _leads_to_outer_folder(str(path.readlink()), name, final):
                yield f"has {name}, a link to the folder {path.readlink()} outside of the environment"
        for command in _commands(unpacked):
            if "/" in command:
                yield f"has a command called {command}"
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        yield f"has documents that cannot be read ({error})"


def _listed_paths(unpacked: Path) -> Iterator[str]:
    """From paths.json, or in old packages from a list of names."""
    document = _read_json(unpacked / "info" / "paths.json")
    names = unpacked / "info" / "files"
    if document is not None:
        for row in document["paths"]:
            yield str(row["_path"])
    elif names.is_file():
        yield from names.read_text(encoding="utf-8").splitlines()


def _commands(unpacked: Path) -> Iterator[str]:
    """The names of scripts that linking makes: `name = module:function`."""
    document = _read_json(unpacked / "info" / "link.json") or {}
    noarch = document.get("noarch") or {}
    for entry in noarch.get("entry_points") or ():
        yield str(entry).partition("=")[0].strip()


def _read_json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def _leads_to_outer_folder(target: str, name: str, final: Path) -> bool:
    """A link to a file is only read; below a link to a folder, other packages' files would be
    written."""
    joined = posixpath.join(str(final), posixpath.dirname(name), target)
    resolved = Path(posixpath.normpath(joined))
    return not resolved.is_relative_to(final) and resolved.is_dir()
