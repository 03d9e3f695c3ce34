"""What goes into an image: its entries, those of the conda part and our own. Those of wheels are made in records.

The conda part comes from a folder that was linked for the image (paths inside its files name /opt/env). Nothing here writes.
"""

from __future__ import annotations

import json
import os
import posixpath
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from provision.core.errors import IntegrityError, StaleLock
from provision.core.mirrors import without_credentials
from provision.core.types import Prefix
from provision.image.layer_groups import GROUPS as GROUPS
from provision.image.tar import Kind

PREFIX = "/opt/env"
PYTHON = f"{PREFIX}/bin/python"
ENTRY = "/usr/local/bin/provision-smoke"
WORKSPACE = "/workspace"

ENTRY_SCRIPT = f'#!/bin/sh\n# The smoke test of this environment: provision-smoke --out DIR\nexec {PYTHON} -I -m provision_runtime smoke "$@"\n'

# What installers leave for themselves and what differs between hosts: a cache marker, where a wheel came from. Byte code is
# left out too: its header holds its source's time.
LEFT_OUT = frozenset({"CACHEDIR.TAG", "direct_url.json", "uv_cache.json", "uv_build.json"})
_HOST_KEYS = ("extracted_package_dir", "package_tarball_full_path", "link")
# By this file conda knows an environment. rattler leaves it empty, and so do we: conda would write times into it.
_HISTORY = "conda-meta/history"
# Where rattler puts files that another package has too, and wins.
_CLOBBERS = "__clobbers__/"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One member of a layer. A file has either a `source` on this host or its `content`."""

    path: str  # in the image, without the leading slash
    kind: Kind = "file"
    mode: int = 0o644
    size: int = 0
    source: Path | None = None
    content: bytes | None = None
    target: str = ""
    conda: str = ""  # the conda package that it is part of
    # What its package says of it: a wheel's RECORD or conda's paths.json. Several, because wheels share files (each nvidia wheel
    # has nvidia/__init__.py).
    hashes: frozenset[str] = frozenset()
    sizes: frozenset[int] = frozenset()

    @staticmethod
    def of(path: str, content: bytes, *, executable: bool = False) -> Entry:
        return Entry(
            path=path.lstrip("/"),
            content=content,
            size=len(content),
            mode=0o755 if executable else 0o644,
        )


@dataclass
class _Told:
    """What the records in conda-meta say of files, by their paths in the prefix. Several packages may have one."""

    package: dict[str, str] = field(default_factory=dict)
    sha256: dict[str, set[str]] = field(default_factory=dict)
    rewritten: set[str] = field(default_factory=set)

    def hashes(self, path: str) -> frozenset[str]:
        return frozenset(() if path in self.rewritten else self.sha256.get(path, ()))


def conda_entries(staging: Path) -> Iterator[Entry]:
    """Every file and link below the folder that the conda packages were linked into, with the package that says it has it."""
    told = _told(staging)
    for path in _walk(staging):
        relative = path.relative_to(staging).as_posix()
        if relative != _HISTORY and not relative.startswith(_CLOBBERS):
            yield replace(
                _conda_entry(path, relative, told.hashes(relative)),
                conda=told.package.get(relative, ""),
            )


def _conda_entry(path: Path, relative: str, hashes: frozenset[str]) -> Entry:
    inside = f"{PREFIX.lstrip('/')}/{relative}"
    if path.is_symlink():
        return Entry(
            path=inside,
            kind="link",
            mode=0o777,
            target=_checked_target(str(path.readlink()), inside),
        )
    if not path.is_file():
        raise IntegrityError(
            f"{relative} in a conda package is neither a file nor a link, so it is not put into an image."
        )
    if relative.startswith("conda-meta/") and relative.endswith(".json"):
        return Entry.of(inside, without_host_paths(path.read_text(encoding="utf-8")))
    return replace(from_file(inside, path), hashes=hashes)


def _told(staging: Path) -> _Told:
    """A file whose paths were rewritten has another hash than its package says; what it was made from, rattler has looked at."""
    told = _Told()
    for path in sorted((staging / "conda-meta").glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        told.package[f"conda-meta/{path.name}"] = record["name"]
        for row in record.get("paths_data", {}).get("paths", ()):
            told.package[row["_path"]] = record["name"]
            if row["path_type"] != "hardlink" or not row.get("sha256"):
                continue
            told.sha256.setdefault(row["_path"], set()).add(row["sha256"])
            if row.get("prefix_placeholder"):
                told.rewritten.add(row["_path"])
    return told


def clobbered(prefix: Path) -> dict[str, list[str]]:
    """The files that conda packages lost to others of the same prefix, by package, as the records in conda-meta say."""
    found = {}
    for path in sorted((prefix / "conda-meta").glob("*.json")):
        text = path.read_text(encoding="utf-8")
        if '"original_path"' in text:  # most prefixes have none, and their records are long
            record = json.loads(text)
            rows = record.get("paths_data", {}).get("paths", ())
            found[record["name"]] = sorted(
                row["original_path"] for row in rows if row.get("original_path")
            )
    return found


def site_packages(python: str) -> str:
    """Where Python packages lie in an image. python: minor version, e.g. 3.11."""
    return f"{PREFIX}/lib/python{python}/site-packages"


def own_entries(runtime: Mapping[str, bytes], python: str) -> list[Entry]:
    """What provision itself adds: its runtime package, the command of the smoke test, and a folder that any user may write to.

    runtime: the files of the runtime package by their path below site-packages.
    """
    site = site_packages(python)
    entries = [Entry.of(f"{site}/{path}", content) for path, content in runtime.items()]
    entries.append(Entry.of(ENTRY, ENTRY_SCRIPT.encode(), executable=True))
    entries.append(Entry.of(f"{PREFIX}/{_HISTORY}", b""))
    entries.append(Entry(path=WORKSPACE.lstrip("/"), kind="folder", mode=0o1777))
    return sorted(entries, key=lambda entry: entry.path)


def without_host_paths(text: str) -> bytes:
    """A conda-meta record without the keys that say where this host keeps its package cache and local channels, and without what
    lets anybody into a channel."""
    record = {key: value for key, value in json.loads(text).items() if key not in _HOST_KEYS}
    for key in ("url", "channel"):
        if str(record.get(key, "")).startswith("file:"):
            record[key] = without_folder(str(record[key]), keep=2 if key == "url" else 0)
        elif isinstance(record.get(key), str):
            record[key] = without_credentials(record[key])
    return (json.dumps(record, indent=2, sort_keys=True) + "\n").encode()


def without_folder(url: str, *, keep: int) -> str:
    """A local channel's address by its last parts only (subdir and file name)."""
    parts = url.split("/")
    return "/".join(["file:///local-channel", *parts[len(parts) - keep :]])


def verify(entry: Entry, digest: str) -> None:
    """Raise if a file is not what its package says, or any wheel whose RECORD lists it."""
    if not entry.hashes or digest in entry.hashes:
        return
    if entry.conda:
        raise IntegrityError(
            f"/{entry.path} of the conda package {entry.conda} is not what the package says: it was changed while it was read.",
            advice="Run the same command again: what is damaged in the package cache is fetched anew.",
        )
    raise IntegrityError(
        f"{entry.source} was changed after it was installed: its hash is not the one in its wheel's RECORD.",
        advice="`provision env remove` the environment and build it again. If it stays so, the file is damaged in uv's cache, with which "
        "the environment shares it: `uv cache clean PACKAGE` first.",
    )


def check_prefix(prefix: Prefix, lock_sha256: str) -> None:
    """Raise if a prefix was not made from this lock."""
    if prefix.lock_sha256 != lock_sha256:
        raise StaleLock(
            f"The prefix {prefix.path} was made from another lock ({prefix.lock_sha256[:12]}, not {lock_sha256[:12]}).",
            advice="Run `provision env create` first, then build the image.",
        )


def from_file(inside: str, path: Path) -> Entry:
    """A file by what it is on this host. Never anything that is not one: a pipe would be waited for, a device read without end."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise IntegrityError(
            f"{path} is not a file, though a package says so; it is not put into an image."
        )
    return Entry(
        path=inside,
        mode=0o755 if status.st_mode & 0o100 else 0o644,
        size=status.st_size,
        source=path,
    )


def _checked_target(target: str, path: str) -> str:
    if target.startswith("/") and not target.startswith(f"{PREFIX}/"):
        raise IntegrityError(
            f"/{path} in a conda package links to {target} on the host, so it is not put into an image."
        )
    if posixpath.normpath(posixpath.join(posixpath.dirname(path), target)).startswith(".."):
        raise IntegrityError(
            f"/{path} in a conda package links to {target}, beyond the root, so it is not put into an image."
        )
    return target


def _walk(folder: Path) -> Iterator[Path]:
    """Everything below a folder but folders themselves, byte code of sources that are there, and installers' droppings."""
    with os.scandir(folder) as found:
        items = sorted(found, key=lambda item: item.name)
        names = {item.name for item in items}
        for item in items:
            is_cache = item.name == "__pycache__" or (
                item.name.endswith(".pyc") and item.name[:-1] in names
            )
            if is_cache or item.name in LEFT_OUT:
                continue
            if item.is_dir(follow_symlinks=False):
                yield from _walk(Path(item.path))
            else:
                yield Path(item.path)
