"""Digests of an installed environment: one per distribution, and one of them all.

Two prefixes with equal digests hold the same files. A *shallow* digest covers every file's path,
size, executable bit and link target, and each distribution's own record (a wheel's RECORD, a conda
package's hash); it opens no file but the records. A *deep* digest also covers every byte.

Left out is what may differ between equal environments: conda-meta, where installers write about
their host, and byte code that Python wrote when it ran. Byte code that `provision pack` made
belongs to the distribution of its source. Nothing here writes.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Dict, NamedTuple, Optional, TypedDict

# The name of what no distribution lists.
OTHER = "(other files)"
READ_BYTES = 1 << 20

_RECORDS = "conda-meta"
# `provision` writes it into every prefix that it makes; until November 2026 under the second name.
_MARKERS = ("conda-meta/provision.state", "conda-meta/provision.json")
_BYTECODE = "__pycache__"
_WHEEL_RECORD = re.compile(r"lib/python3[^/]*/site-packages/([^/]+)\.dist-info/RECORD")


class Distribution(NamedTuple):
    """An installed package, or what belongs to none.

    kind: conda, wheel or files. identity: the hash of its record. paths: what it lists.
    """

    name: str
    version: str
    kind: str
    identity: str
    paths: tuple[str, ...]


class DistributionDigest(TypedDict):
    version: str
    kind: str
    digest: str


class PrefixDigests(TypedDict):
    """root: of all distributions. lock_sha256: the lock that the prefix was made from, if its
    marker has it."""

    deep: bool
    distributions: Dict[str, DistributionDigest]
    root: str
    lock_sha256: Optional[str]


def file_sha256(path: "str | os.PathLike[str]") -> str:
    """The SHA-256 of a file's bytes, in constant memory."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(READ_BYTES))
    with open(path, "rb", buffering=0) as file:
        while True:
            if not (count := file.readinto(buffer)):
                return digest.hexdigest()
            digest.update(buffer[:count])


def prefix_digests(
    prefix: str, deep: bool, sha256: Callable[[str], str] = file_sha256
) -> PrefixDigests:
    """The digest of each distribution in a prefix, by name, and of them all.

    A file of several distributions counts for the one that was
    installed last. sha256: hashes a file. Raises OSError for a prefix that cannot be read.
    """
    prefix = os.path.realpath(prefix)
    marker = read_marker(prefix)
    distributions: dict[str, DistributionDigest] = {}
    root = hashlib.sha256()
    files = dict(_walk(prefix, "", sha256 if deep else None, "pack" in marker))
    for name, distribution, paths in _inventory(prefix, sorted(files, key=os.fsencode)):
        digest = hashlib.sha256(f"{distribution.identity}\n".encode())
        for path in paths:
            digest.update(os.fsencode(f"{path}\0{files[path]}\n"))
        version, kind = distribution.version, distribution.kind
        distributions[name] = {"version": version, "kind": kind, "digest": digest.hexdigest()}
        root.update(f"{name}\0{version}\0{kind}\0{digest.hexdigest()}\n".encode())
    return {
        "deep": deep,
        "distributions": distributions,
        "root": root.hexdigest(),
        "lock_sha256": marker.get("lock_sha256"),
    }


def _inventory(prefix: str, files: Sequence[str]) -> Iterator[tuple[str, Distribution, list[str]]]:
    """Every distribution by a unique name, with its files in the order of all."""
    conda = sorted(_conda_distributions(prefix), key=lambda item: item.name)
    conda_paths = {path for distribution in conda for path in distribution.paths}
    wheels = sorted(
        _wheel_distributions(prefix, files, conda_paths),
        key=lambda item: (item.name, item.version),
    )
    distributions = {}
    owners = {}
    for distribution in [*conda, *wheels]:
        if (name := distribution.name) in distributions:
            # pip over conda, or what a broken uninstall left: both count.
            name = f"{name} ({distribution.kind} {distribution.version})"
        distributions[name] = distribution
        for path in distribution.paths:
            owners[path] = name
    distributions[OTHER] = Distribution(OTHER, "", "files", "", ())
    files_of: dict[str, list[str]] = {name: [] for name in distributions}
    for path in files:
        owner = owners.get(path) or owners.get(byte_code_source(path), OTHER)
        files_of[owner].append(path)
    for name in sorted(distributions):
        yield name, distributions[name], files_of[name]


def _walk(
    prefix: str, folder: str, sha256: Callable[[str], str] | None, with_bytecode: bool
) -> Iterator[tuple[str, str]]:
    """Every file and link below a folder of the prefix, except conda-meta; and a text that changes
    with it, for the digest of its distribution."""
    with os.scandir(os.path.join(prefix, folder)) as entries:
        items = list(entries)
    for item in items:
        path = f"{folder}/{item.name}" if folder else item.name
        if path == _RECORDS or (item.name == _BYTECODE and not with_bytecode):
            continue
        if item.is_dir(follow_symlinks=False):
            yield from _walk(prefix, path, sha256, with_bytecode)
            continue
        status = item.stat(follow_symlinks=False)
        description = "neither a file nor a link"
        if item.is_symlink():
            description = f"link {os.readlink(item.path)}"
        elif stat.S_ISREG(status.st_mode):
            kind = "executable" if status.st_mode & 0o111 else "file"
            content = f" {sha256(item.path)}" if sha256 else ""
            description = f"{kind} {status.st_size}{content}"
        yield path, description


def byte_code_source(path: str) -> str:
    """The source that a file in __pycache__ was compiled from; empty for other files."""
    folder, name = posixpath.split(path)
    parent, last = posixpath.split(folder)
    if last != _BYTECODE:
        return ""
    return posixpath.join(parent, name.split(".")[0] + ".py")


def _conda_distributions(prefix: str) -> Iterator[Distribution]:
    """The conda packages by their records; one that cannot be read counts as not installed."""
    folder = os.path.join(prefix, _RECORDS)
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        record = _read_json(os.path.join(folder, name))
        if name.endswith(".json") and {"name", "version", "build"} <= record.keys():
            yield Distribution(
                name=str(record["name"]),
                version=f"{record['version']} {record['build']}",
                kind="conda",
                identity=str(record.get("sha256") or record.get("md5")),
                paths=tuple(row["_path"] for row in record.get("paths_data", {}).get("paths", ())),
            )


def _wheel_distributions(
    prefix: str, paths: Sequence[str], conda_paths: Collection[str]
) -> Iterator[Distribution]:
    """The wheels by their RECORDs, without those that are part of conda packages."""
    import csv

    for path in paths:
        if (match := _WHEEL_RECORD.fullmatch(path)) is None or path in conda_paths:
            continue
        with open(os.path.join(prefix, path), "rb") as file:
            content = file.read()
        rows = csv.reader(content.decode("utf-8", "surrogateescape").splitlines())
        site_packages = posixpath.dirname(posixpath.dirname(path))
        listed = [f"{site_packages}/{row[0]}" for row in rows if row and row[0][:1] != "/"]
        name, _, version = match[1].rpartition("-")
        yield Distribution(
            name=re.sub(r"[-_.]+", "-", name).lower(),
            version=version,
            kind="wheel",
            identity=hashlib.sha256(content).hexdigest(),
            paths=(path, *map(normal_path, listed)),
        )


def normal_path(path: str) -> str:
    """normpath, for tens of thousands of paths that mostly are as it would make them."""
    return posixpath.normpath(path) if "./" in path or "//" in path else path


def read_marker(prefix: str) -> dict[str, Any]:
    """What provision wrote about the prefix when it made it; empty for other prefixes."""
    for name in _MARKERS:
        if marker := _read_json(os.path.join(prefix, name)):
            return marker
    return {}


def _read_json(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
