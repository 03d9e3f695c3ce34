"""A prefix whose wheels change a little: only files of these wheels are touched.

What is new is installed and compiled next to the prefix. Then folders and files change places by
renames, of which a list is written first: whatever a kill leaves, `undo` makes the old prefix of it.
Meanwhile the prefix has no marker: nobody takes it for an environment.
"""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from packaging.utils import canonicalize_name

from provision.adapters import uv
from provision.adapters.installed_files import (
    INSTALL_RECORD,
    conda_records,
    path_rows,
)
from provision.core import disk_usage
from provision.core.atomic import atomic_write, backup_path, remove_tree, staging_path
from provision.core.dataclass import frozen
from provision.core.mirrors import Mirrors
from provision.core.paths import make_private_directory
from provision.core.types import Lock, LockedPackage, Prefix, Progress
from provision.environment import bytecode, drift, install_record, runtime_package
from provision.environment.install_record import InstallRecord
from provision.environment.marker import MARKER
from provision_runtime.facts import freshness
from provision_runtime.facts.digests import byte_code_source

# In the backup: what changes places, in order.
RENAMES = "renames.json"
RECORDS = (str(MARKER), str(INSTALL_RECORD))


@frozen
class WheelChange:
    """New wheels, installed in the staging directory, and what gives way to them.

    new: a lock of them alone. leaving: names.
    outgoing, incoming: files and folders that are renamed, from the prefix on.
    """

    prefix: Prefix
    new: Lock
    leaving: frozenset[str]
    outgoing: tuple[str, ...]
    incoming: tuple[str, ...]
    record: InstallRecord

    @property
    def size(self) -> int:
        """The bytes of what leaves."""
        return sum(disk_usage.measure(self.prefix.path / path).size for path in self.outgoing)

    def records(self, staging: Path) -> tuple[str, ...]:
        """The names of all packages' records afterwards, see `package_records`."""
        gone = {posixpath.basename(path) for path in self.outgoing}
        present = freshness.package_records(str(self.prefix.path)) - gone
        return tuple(sorted(present | freshness.package_records(str(staging))))

    def write_record(self, staging: Path) -> None:
        """Write the install record of the changed prefix."""
        byte_code = {}
        folders = tuple(f"{path}/" for path in self.outgoing)
        for path, sha256 in self.record.byte_code.items():
            if path not in self.outgoing and not path.startswith(folders):
                byte_code[path] = sha256
        byte_code.update(bytecode.compiled_files(staging))
        distributions = {
            name: entry
            for name, entry in self.record.distributions.items()
            if canonicalize_name(name) not in self.leaving
        }
        distributions.update(install_record.digests(staging, with_other=False))
        install_record.write(staging, dict(sorted(byte_code.items())), distributions)


def prepare(
    prefix: Prefix,
    before: Lock,
    lock: Lock,
    cache: Path,
    progress: Progress,
    mirrors: Mirrors,
) -> WheelChange | None:
    """Install and compile what is new, next to the prefix of the lock `before`.

    cache: of byte code. Returns None, with nothing in the staging directory, if the prefix must be
    installed anew: other conda packages, a prefix that was changed by hand, or packages that have a
    file in common with others.
    """
    path, staging = prefix.path, staging_path(prefix.path)
    if set(map(_identity, before.by("conda"))) != set(map(_identity, lock.by("conda"))):
        return None
    record = install_record.read(path)
    if record is None or not drift.is_current(prefix, before) or _was_changed(prefix):
        return None
    old = {canonicalize_name(package.name): _identity(package) for package in before.by("pip")}
    new = {canonicalize_name(package.name): package for package in lock.by("pip")}
    changed = [package for name, package in new.items() if _identity(package) != old.get(name)]
    leaving = frozenset(name for name in old if name not in new or new[name] in changed)
    names = {canonicalize_name(package.name) for package in changed} | leaving
    if names & {canonicalize_name(package.name) for package in lock.by("conda")}:
        return None
    files = _leaving_files(prefix, leaving) if leaving else set()
    if files is None:
        return None
    make_private_directory(staging)
    if changed:
        progress.info(f"installing {', '.join(package.name for package in changed)}")
        with progress.meter("installing wheels", 0):
            uv.install_wheels(
                changed, prefix.python, mirrors, target=staging, on_line=progress.info
            )
        for mark in (".lock", "CACHEDIR.TAG"):
            (staging / mark).unlink(missing_ok=True)
        bytecode.compile_all(staging, "checked-hash", cache, base=path)
    if removed := sorted(leaving - new.keys()):
        progress.info(f"removing {', '.join(removed)}")
    folders = {parent for file in files for parent in _parents(file)}
    folders |= {f"{posixpath.dirname(file)}/{bytecode.FOLDER}" for file in files}
    outgoing, _ = _outgoing(path, "", files, folders)
    incoming = []
    for file in _incoming(path, staging, "", outgoing):
        if file in outgoing or not os.path.lexists(path / file):
            incoming.append(file)
        elif byte_code_source(file):
            outgoing.append(file)
            incoming.append(file)
        else:  # of another package, or somebody's
            remove_tree(staging)
            return None
    return WheelChange(
        prefix=prefix,
        new=replace(lock, packages=tuple(changed)),
        leaving=leaving,
        outgoing=tuple(outgoing),
        incoming=tuple(incoming),
        record=record,
    )


def exchange(change: WheelChange) -> None:
    """Let old and new change places. The marker goes first and comes last."""
    path = change.prefix.path
    staging, backup = staging_path(path), backup_path(path)
    outgoing, incoming = [*RECORDS, *change.outgoing], [*change.incoming, *reversed(RECORDS)]
    atomic_write(backup / RENAMES, json.dumps({"outgoing": outgoing, "incoming": incoming}))
    for file in outgoing:
        (backup / file).parent.mkdir(parents=True, exist_ok=True)
    for file in outgoing:
        (path / file).rename(backup / file)
    for file in incoming:
        (staging / file).rename(path / file)


def undo(path: Path) -> bool:
    """Take back what `exchange` did, however much that was; can be repeated. Returns whether there
    was anything."""
    staging, backup = staging_path(path), backup_path(path)
    try:
        renames = json.loads((backup / RENAMES).read_bytes())
    except (OSError, ValueError):
        return False
    for file in reversed(renames["incoming"]):
        if not os.path.lexists(staging / file):
            with suppress(FileNotFoundError):
                (path / file).rename(staging / file)
    for file in reversed(renames["outgoing"]):
        if os.path.lexists(backup / file):
            (backup / file).rename(path / file)
    return True


def _leaving_files(prefix: Prefix, leaving: Collection[str]) -> set[str] | None:
    """The files of wheels that leave, from the prefix on. None if packages that stay have any of
    them."""
    removed: set[str] = set()
    shared: set[str] = set()
    for dist_info, paths in uv.recorded_wheels(prefix.path).items():
        is_leaving = canonicalize_name(dist_info.split("-")[0]) in leaving
        (removed if is_leaving else shared).update(paths)
    if not removed.isdisjoint(shared):
        return None
    inside = runtime_package.site_packages(prefix.path).relative_to(prefix.path)
    files = {posixpath.normpath(posixpath.join(inside, path)) for path in removed}
    for record in conda_records(prefix.path).values():
        if not files.isdisjoint(row["_path"] for row in path_rows(record)):
            return None
    return files


def _outgoing(
    tree: Path, folder: str, files: Collection[str], folders: Collection[str]
) -> tuple[list[str], bool]:
    """What leaves with these files and their byte code, by whole folders where nothing else is in
    them; and whether all of `folder` does. folders: those below which any of it is."""
    outgoing, is_whole = [], True
    with os.scandir(tree / folder) as entries:
        for entry in entries:
            path = posixpath.join(folder, entry.name)
            if path in folders and entry.is_dir(follow_symlinks=False):
                inner, is_inner_whole = _outgoing(tree, path, files, folders)
                outgoing += [path] if is_inner_whole else inner
                is_whole = is_whole and is_inner_whole
            elif path in files or byte_code_source(path) in files:
                outgoing.append(path)
            else:
                is_whole = False
    return outgoing, is_whole


def _incoming(tree: Path, staging: Path, folder: str, outgoing: Collection[str]) -> Iterator[str]:
    """What is new, by whole folders where the tree has none of that name, or none any more."""
    with os.scandir(staging / folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            path = posixpath.join(folder, entry.name)
            is_folder = entry.is_dir(follow_symlinks=False) and (tree / path).is_dir()
            if is_folder and path not in outgoing:
                yield from _incoming(tree, staging, path, outgoing)
            else:
                yield path


def _parents(file: str) -> Iterator[str]:
    while file := posixpath.dirname(file):
        yield file


def _was_changed(prefix: Prefix) -> bool:
    """Whether a wheel was installed after the prefix was completed."""
    completed = (prefix.path / MARKER).stat().st_mtime
    for dist_info in prefix.path.glob("lib/python3*/site-packages/*.dist-info"):
        is_runtime = dist_info.name.startswith(f"{runtime_package.NAME}-")
        if not is_runtime and dist_info.stat().st_mtime > completed:
            return True
    return False


def _identity(package: LockedPackage) -> tuple[str, ...]:
    return package.name, package.version, package.sha256, package.url
