"""The conda packages of an image and provision's own files, as entries of layers.

The conda packages are read from a directory where they were linked for the image, so that paths in
their files name /opt/env. Nothing here writes. wheel_files has the wheels.
"""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from provision.adapters.installed_files import (
    HOST_FILES,
    CondaRecord,
    conda_records,
    list_byte_code,
    path_rows,
    without_host_paths,
)
from provision.core.container import PREFIX, PYTHON, WORKSPACE
from provision.core.errors import IntegrityError, StaleLock
from provision.core.types import Prefix
from provision.image.layers import LayerEntry, file_entry

COMMAND = "/usr/local/bin/provision-smoke"

COMMAND_SCRIPT = f"""\
#!/bin/sh
# The smoke test of this environment: provision-smoke --out DIR
exec {PYTHON} -I -m provision_runtime smoke "$@"
"""

# conda recognizes an environment by this file. rattler leaves it empty, and so do we, because conda
# would write times into it.
_HISTORY = "conda-meta/history"
# Where rattler puts files that lost to a file of another package.
_CLOBBERS = "__clobbers__/"


@dataclass
class _CondaRecords:
    """The files in conda-meta's records, by their paths in the prefix. Several packages may have
    the same file."""

    package: dict[str, str] = field(default_factory=dict)
    sha256: dict[str, set[str]] = field(default_factory=dict)
    rewritten: set[str] = field(default_factory=set)

    def hashes(self, path: str) -> frozenset[str]:
        if path in self.rewritten:
            return frozenset()
        return frozenset(self.sha256.get(path, ()))


def conda_entries(
    staging: Path, byte_code: Mapping[str, Sequence[str]] | None = None
) -> Iterator[LayerEntry]:
    """Every file and link below the directory that the conda packages were linked into, with the
    package that owns it.

    byte_code: files of byte code by their source. conda's records list those of sources that are
    the same in every prefix.
    """
    # Leaves out the hashes of files whose paths were rewritten: they differ from the package's.
    # rattler has checked the originals.
    records = _CondaRecords()
    for path, record in conda_records(staging).items():
        records.package[f"conda-meta/{path.name}"] = record["name"]
        for row in path_rows(record):
            file = row["_path"]
            records.package[file] = record["name"]
            if row["path_type"] != "hardlink" or not row.get("sha256"):
                continue
            records.sha256.setdefault(file, set()).add(row["sha256"])
            if row.get("prefix_placeholder"):
                records.rewritten.add(file)
    listed = {
        source: files for source, files in (byte_code or {}).items() if records.hashes(source)
    }
    for path in _walk(staging):
        relative = path.relative_to(staging).as_posix()
        if relative == _HISTORY or relative.startswith(_CLOBBERS):
            continue
        entry = _conda_entry(path, relative, records.hashes(relative), listed)
        yield replace(entry, conda=records.package.get(relative, ""))


def _conda_entry(
    path: Path, relative: str, hashes: frozenset[str], byte_code: Mapping[str, Sequence[str]]
) -> LayerEntry:
    image_path = f"{PREFIX.lstrip('/')}/{relative}"
    if path.is_symlink():
        target = str(path.readlink())
        if target.startswith("/") and not target.startswith(f"{PREFIX}/"):
            raise IntegrityError(
                f"/{image_path} in a conda package links to {target} on the host, so it cannot be put into an "
                "image."
            )
        if posixpath.normpath(posixpath.join(posixpath.dirname(image_path), target)).startswith(
            ".."
        ):
            raise IntegrityError(
                f"/{image_path} in a conda package links to {target}, beyond the root, so it cannot be put "
                "into an image."
            )
        return LayerEntry(path=image_path, kind="link", mode=0o777, target=target)
    if not path.is_file():
        raise IntegrityError(
            f"{relative} in a conda package is neither a file nor a link, so it cannot be put into "
            "an image."
        )
    if relative.startswith("conda-meta/") and relative.endswith(".json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        list_byte_code(record, byte_code)
        return LayerEntry.of(image_path, without_host_paths(json.dumps(record)))
    return replace(file_entry(image_path, path), hashes=hashes)


def clobbered_files(prefix: Path) -> dict[str, list[str]]:
    """The files that conda packages lost to others of the same prefix, by package, from the records
    in conda-meta."""
    clobbered = {}
    for path in sorted((prefix / "conda-meta").glob("*.json")):
        text = path.read_text(encoding="utf-8")
        if '"original_path"' not in text:  # most records are long and have none
            continue
        record: CondaRecord = json.loads(text)
        originals = [row["original_path"] for row in path_rows(record) if row.get("original_path")]
        clobbered[record["name"]] = sorted(originals)
    return clobbered


def site_packages(python: str) -> str:
    """Where Python packages are in an image. python: minor version, e.g. 3.11."""
    return f"{PREFIX}/lib/python{python}/site-packages"


def provision_entries(runtime: Mapping[str, bytes], python: str) -> list[LayerEntry]:
    """The files that provision itself adds: its runtime package, the command of the smoke test, and
    a folder that any user may write to.

    runtime: the files of the runtime package by their paths below site-packages.
    """
    folder = site_packages(python)
    entries = [LayerEntry.of(f"{folder}/{path}", content) for path, content in runtime.items()]
    entries.append(LayerEntry.of(COMMAND, COMMAND_SCRIPT.encode(), executable=True))
    entries.append(LayerEntry.of(f"{PREFIX}/{_HISTORY}", b""))
    entries.append(LayerEntry(path=WORKSPACE.lstrip("/"), kind="folder", mode=0o1777))
    return sorted(entries, key=lambda entry: entry.path)


def check_prefix(prefix: Prefix, lock_sha256: str) -> None:
    """Raise StaleLock if a prefix was not made from this lock."""
    if prefix.lock_sha256 != lock_sha256:
        raise StaleLock(
            f"The prefix {prefix.path} was made from another lock ({prefix.lock_sha256[:12]}, not "
            f"{lock_sha256[:12]}).",
            advice="Run `provision env create` first, then build the image.",
        )


def _walk(folder: Path) -> Iterator[Path]:
    """Every file and link below a folder, except byte code whose source exists and files
    that installers left."""
    with os.scandir(folder) as iterator:
        items = sorted(iterator, key=lambda item: item.name)
    names = {item.name for item in items}
    for item in items:
        is_bytecode = item.name.endswith(".pyc") and item.name[:-1] in names
        if item.name == "__pycache__" or is_bytecode or item.name in HOST_FILES:
            continue
        if item.is_dir(follow_symlinks=False):
            yield from _walk(Path(item.path))
        else:
            yield Path(item.path)
