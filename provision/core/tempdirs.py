"""Temporary directories that last as long as one piece of work, in the system's temporary folder.

The process that works in one keeps it locked (flock). The kernel releases the lock when the process
dies, and it also works between containers that share the folder. The next process that needs a
temporary directory removes those that killed processes left. Children do not inherit the lock.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from provision.core.file_locks import try_lock

PREFIX = "provision."  # then the purpose: provision.smoke.k3j2h1


@contextmanager
def temporary_directory(purpose: str) -> Iterator[Path]:
    """A new, empty directory, removed at the end of the block."""
    remove_abandoned()
    path, descriptor = _create_locked(purpose)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def remove_abandoned() -> list[Path]:
    """Remove this user's temporary directories that no process has locked, and return them.

    Directories that cannot be removed stay.
    """
    return [path for path in _candidates() if _is_abandoned(path, remove=True)]


def list_abandoned() -> list[Path]:
    """The directories that `remove_abandoned` would remove."""
    return [path for path in _candidates() if _is_abandoned(path, remove=False)]


def _candidates() -> list[Path]:
    return sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*.*"))


def _is_abandoned(path: Path, *, remove: bool) -> bool:
    """Whether a directory is this user's and no process has locked it. remove: also remove it."""
    try:
        if path.is_symlink() or not path.is_dir() or path.stat().st_uid != os.geteuid():
            return False
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # Without file locks nobody can show that it is working here, so the directory stays.
        if try_lock(descriptor) != "locked":
            return False
        if remove:
            shutil.rmtree(path)
    except OSError:  # not ours to remove
        return False
    finally:
        os.close(descriptor)
    return True


def _create_locked(purpose: str) -> tuple[Path, int]:
    """A new directory and the descriptor that locks it.

    Another process may remove it between its creation and its locking: then we create another.
    """
    while True:
        path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{purpose}."))
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        state = try_lock(descriptor)
        if state == "unsupported" or (state == "locked" and path.exists()):
            return path, descriptor
        os.close(descriptor)
