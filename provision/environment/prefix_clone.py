"""A prefix whose wheels change a little: hard links to the old one, and only the changed wheels
installed.

Linking conda packages and 50 wheels anew takes seconds, of which adding one package needs none.
The old prefix stays whole until the new one replaces it: nothing writes into a linked file, every
installer removes a file and writes a new one.
"""

from __future__ import annotations

import os
import posixpath
import shutil
from pathlib import Path

from packaging.utils import canonicalize_name

from provision.adapters import uv
from provision.core.mirrors import Mirrors
from provision.core.paths import make_private_directory
from provision.core.types import Lock, LockedPackage, Prefix, Progress
from provision.environment import bytecode, drift, runtime_package
from provision.environment.marker import MARKER


def install_changes(
    prefix: Prefix,
    before: Lock,
    lock: Lock,
    staging: Path,
    progress: Progress,
    mirrors: Mirrors,
) -> dict[str, str] | None:
    """Fill `staging`, which does not exist, from the prefix of the lock `before`.

    Returns the fingerprints of the wheels that stay. Returns None, with nothing in `staging`, if
    the prefix must be installed anew: other conda packages, a prefix that was changed by hand, or
    packages that share files with those that go.
    """
    if set(map(_identity, before.by("conda"))) != set(map(_identity, lock.by("conda"))):
        return None
    if not drift.is_current(prefix, before) or _was_changed(prefix):
        return None
    old = {canonicalize_name(package.name): _identity(package) for package in before.by("pip")}
    new = {canonicalize_name(package.name): package for package in lock.by("pip")}
    changed = [package for name, package in new.items() if _identity(package) != old.get(name)]
    removed = sorted(old.keys() - new.keys())
    leaving = [*removed, *(name for name in old if new.get(name) in changed)]
    if uv.shares_files(prefix.path, leaving):
        return None
    # The folders with files of these wheels, from the prefix on.
    folders: set[str] = set()
    site = runtime_package.site_packages(prefix.path).relative_to(prefix.path)
    for dist_info, paths in uv.recorded_wheels(prefix.path).items() if leaving else ():
        if canonicalize_name(dist_info.split("-")[0]) in leaving:
            listed = (posixpath.normpath(posixpath.join(site, path)) for path in paths)
            folders.update(map(posixpath.dirname, listed))
    try:
        make_private_directory(staging.parent)
        _link_tree(os.fspath(prefix.path), os.fspath(staging))
    except OSError:  # a file system without hard links, or too many of them
        shutil.rmtree(staging, ignore_errors=True)
        return None
    (staging / MARKER).unlink()  # it is no prefix yet
    for mark in staging.glob("lib/python3*/EXTERNALLY-MANAGED"):
        mark.unlink()  # uv would refuse to change the environment
    interpreter = staging / "bin" / "python"
    if removed:
        progress.info(f"removing {', '.join(removed)}")
        uv.uninstall(removed, interpreter)
    if changed:
        progress.info(f"installing {', '.join(package.name for package in changed)}")
        uv.install_wheels(
            changed,
            interpreter,
            mirrors,
            all_packages=lock.by("pip"),
            show_bars=progress.shows_bars,
            warn=progress.warn,
        )
    bytecode.link_unchanged(prefix.path, staging, folders)
    return {
        folder: fingerprint
        for folder, fingerprint in prefix.wheels.items()
        if canonicalize_name(folder.split("-")[0]) not in leaving
    }


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


def _link_tree(source: str, target: str) -> None:
    """Every folder anew, every file a hard link, every link as it is."""
    Path(target).mkdir(mode=0o755)
    with os.scandir(source) as entries:
        for entry in entries:
            destination = f"{target}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                _link_tree(entry.path, destination)
            elif entry.is_symlink():
                Path(destination).symlink_to(Path(entry.path).readlink())
            else:
                os.link(entry.path, destination, follow_symlinks=False)
