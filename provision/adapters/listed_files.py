"""The files that the packages of an environment list: conda's in conda-meta, wheels in their RECORDs."""

from __future__ import annotations

import csv
import posixpath
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from packaging.utils import canonicalize_name

from provision.adapters.installed_files import (
    conda_records,
    hex_digest,
    path_rows,
    wheel_records,
)
from provision.core.types import Manager
from provision_runtime.facts.digests import normal_path


class ListedFile(NamedTuple):
    """A file of a package, by its path from the tree.

    manager, package: whose. record: its package's, from the tree. kind: hardlink, softlink and so on;
    `unreadable` for a RECORD that cannot be read. sha256: as installed; empty if it is unknown.
    names_tree: whether its text names the tree's path.
    """

    manager: Manager
    package: str
    record: str
    path: str
    kind: str = "hardlink"
    sha256: str = ""
    names_tree: bool = False


def listed_files(tree: Path) -> Iterator[ListedFile]:
    """The files that packages list, those of conda first, then by the names of wheels: of several with
    one file, the last wheel by name decides it. A wheel that is a conda package counts as that."""
    of_conda = set()
    for path, document in conda_records(tree).items():
        for row in path_rows(document):
            of_conda.add(row["_path"])
            yield ListedFile(
                "conda",
                document["name"],
                f"conda-meta/{path.name}",
                row["_path"],
                row.get("path_type", "hardlink"),
                row.get("sha256_in_prefix") or row.get("sha256") or "",
                bool(row.get("prefix_placeholder")),
            )
    records = {}
    for path in wheel_records(tree):
        record = path.relative_to(tree).as_posix()
        if record not in of_conda:
            name = path.parent.name.removesuffix(".dist-info").rpartition("-")[0]
            records[canonicalize_name(name)] = (name, record)
    for _, (name, record) in sorted(records.items()):
        site = posixpath.dirname(posixpath.dirname(record))
        try:
            for listed, digest, _ in csv.reader((tree / record).read_text("utf-8").splitlines()):
                path_in_tree = normal_path(f"{site}/{listed}")
                yield ListedFile("pip", name, record, path_in_tree, sha256=hex_digest(digest) or "")
        except (ValueError, csv.Error):
            yield ListedFile("pip", name, record, record, "unreadable")
