"""Files that several wheels bring with other bytes: uv installs wheels side by side, so that whichever was last wins, by chance."""

from __future__ import annotations

import contextlib
import csv
import posixpath
from collections.abc import Sequence
from pathlib import Path

from packaging.utils import canonicalize_name

from provision.core.types import LockedPackage


def wheels_to_reinstall(packages: Sequence[LockedPackage], site: Path) -> list[LockedPackage]:
    """The installed packages that must be installed once more, one after another, for the last by name to have its way. Most
    environments have none."""
    folders = {
        canonicalize_name(path.name.split("-")[0]): path for path in site.glob("*.dist-info")
    }
    said: dict[str, dict[str, tuple[str, ...]]] = {}
    for package in sorted(packages, key=lambda package: canonicalize_name(package.name)):
        for row in _rows(folders.get(canonicalize_name(package.name))):
            said.setdefault(posixpath.normpath(row[0]), {})[package.name] = tuple(row[1:])
    last = {
        list(claims)[-1]
        for path, claims in said.items()
        if len(set(claims.values())) > 1 and not path.endswith(".pyc")
    }
    return sorted(
        (package for package in packages if package.name in last),
        key=lambda package: canonicalize_name(package.name),
    )


def _rows(folder: Path | None) -> list[list[str]]:
    """Of a RECORD; none where it cannot be read, which is found out when it is checked."""
    with contextlib.suppress(OSError, ValueError, csv.Error):
        if folder is not None:
            return [
                row
                for row in csv.reader((folder / "RECORD").read_text(encoding="utf-8").splitlines())
                if row
            ]
    return []
