"""Lock -> a tree for nodes: installed as it will be at a path there, the same bytes on any host.

What installers write about this host is removed, permissions are those of any umask, and every
source has byte code. The packs of `provision pack` are made from it.
"""

from __future__ import annotations

import csv
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from provision.adapters.installed_files import (
    HOST_FILES,
    wheel_records,
    without_host_paths,
    write_record,
)
from provision.core.errors import IntegrityError
from provision.core.mirrors import NO_MIRRORS, Mirrors
from provision.core.paths import Folders
from provision.core.types import Lock, Prefix, Progress
from provision.environment import bytecode, drift
from provision.environment import prefix as prefixes
from provision_runtime.facts.digests import PrefixDigests, file_sha256, prefix_digests


def install_portable(
    lock: Lock,
    name: str,
    key: str,
    staging: Path,
    final: PurePosixPath,
    folders: Folders,
    progress: Progress,
    mirrors: Mirrors = NO_MIRRORS,
) -> PrefixDigests:
    """Install a lock into `staging`, which does not exist, as it will be at `final` on nodes. Returns
    its deep digests.

    Raises IntegrityError if a file is not what the lock says, or belongs to this host.
    """
    prefixes.install_packages(lock, staging, Path(final), folders, progress, mirrors)
    _remove_host_files(staging)
    prefixes.complete(lock, name, final, staging, pack=key)
    progress.info("checking every file against the lock")
    # Raise IntegrityError if any file is not what the lock and its package say.
    sha256_of = _hash_once()
    installed = Prefix(name=name, path=staging, lock_sha256=lock.sha256)
    drifts = drift.find_drift(installed, lock, files=True, sha256_of=sha256_of)
    if drifts:
        first = drifts[0]
        more = f" ({len(drifts) - 1} more)" if len(drifts) > 1 else ""
        raise IntegrityError(
            f"The installed files are not the locked ones: {first.kind} {first.name}: "
            f"{first.detail}{more}.",
            advice="The cache of conda packages or of uv may be damaged: `uv cache clean` empties "
            "the latter. Nothing was packed.",
        )
    progress.info("compiling every module")
    bytecode.compile_all(staging, "unchecked-hash", folders.byte_code, progress)
    _normalize_permissions(staging, final)
    return prefix_digests(str(staging), deep=True, sha256=sha256_of)


def _hash_once() -> Callable[[str], str]:
    """Hashes a file, and reads it once: the lock's check and the digests both need the hashes of 5 GB."""
    hashes: dict[tuple[int, int, int], str] = {}

    def sha256_of(path: str) -> str:
        status = os.lstat(path)
        key = (status.st_ino, status.st_mtime_ns, status.st_size)
        if key not in hashes:
            hashes[key] = file_sha256(path)
        return hashes[key]

    return sha256_of


def _remove_host_files(tree: Path) -> None:
    """Remove what installers wrote for themselves, the RECORDs' rows about it and about byte code,
    which we make anew, and paths of this host in conda's records."""
    for path in sorted(_files(tree)):
        if path.name in HOST_FILES:
            path.unlink()
    for conda_record in sorted((tree / "conda-meta").glob("*.json")):
        conda_record.write_bytes(without_host_paths(conda_record.read_text(encoding="utf-8")))
    for record in wheel_records(tree):
        rows = list(csv.reader(record.read_text(encoding="utf-8").splitlines()))
        remaining = []
        for row in rows:
            listed = PurePosixPath(row[0])
            if listed.name not in HOST_FILES and listed.parent.name != "__pycache__":
                remaining.append(row)
        if remaining != rows:
            write_record(record, sorted(remaining))


def _normalize_permissions(tree: Path, final: PurePosixPath) -> None:
    """Give every file the permissions that it has under the usual umask, and an inode of its own.

    Files may be hard links into the caches of conda and uv, which must stay as they are.
    """
    visited_inodes = set()
    for path in _files(tree):
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            # Raise IntegrityError for a link that leads out of the environment, where nodes
            # differ.
            location = final / path.parent.relative_to(tree)
            target = os.path.normpath(location / path.readlink())
            if not PurePosixPath(target).is_relative_to(final):
                raise IntegrityError(
                    f"{path.relative_to(tree)} of a package is a link to {path.readlink()}, outside of the "
                    "environment, so it cannot be packed."
                )
            continue
        if not stat.S_ISREG(status.st_mode):
            raise IntegrityError(
                f"{path.relative_to(tree)} of a package is neither a file nor a link, so it cannot "
                "be packed."
            )
        mode = 0o755 if status.st_mode & 0o111 else 0o644
        if stat.S_IMODE(status.st_mode) != mode or status.st_ino in visited_inodes:
            copy = path.with_name(f".{path.name}.copy")
            shutil.copyfile(path, copy)
            copy.chmod(mode)
            copy.replace(path)
        visited_inodes.add(status.st_ino)
    for folder, _, _ in os.walk(tree):
        Path(folder).chmod(0o755)


def _files(tree: Path) -> Iterator[Path]:
    """Everything below a folder but folders; links are not followed."""
    with os.scandir(tree) as entries:
        items = list(entries)
    for item in items:
        if item.is_dir(follow_symlinks=False):
            yield from _files(Path(item.path))
        else:
            yield Path(item.path)
