"""Folders for the length of one piece of work, in the system's temporary folder. What a process that was killed left of them is
removed by the next one that needs such a folder.

Whoever works in one holds it by a lock of the kernel's (flock), which no kill can leave behind, and which also tells processes of
other containers apart that share the folder. Children do not inherit it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

BEGINS = "provision."  # and what for: provision.smoke.k3j2h1


@contextlib.contextmanager
def scratch(what_for: str) -> Iterator[Path]:
    """A new, empty folder that goes away with the block."""
    sweep()
    path, descriptor = _held_folder(what_for)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def sweep() -> list[Path]:
    """Remove the folders that nobody holds any more; those of other users, and what cannot be removed, are left."""
    return [
        path for path in sorted(Path(tempfile.gettempdir()).glob(f"{BEGINS}*.*")) if _is_swept(path)
    ]


def _is_swept(path: Path) -> bool:
    try:
        if path.is_symlink() or not path.is_dir() or path.stat().st_uid != os.geteuid():
            return False
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path)
    except OSError:  # held, or a file system without locks, or not ours to remove
        return False
    finally:
        os.close(descriptor)
    return True


def _held_folder(what_for: str) -> tuple[Path, int]:
    """A new folder and the descriptor that holds it. A sweeper may come in the moment between making and holding: then another."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=f"{BEGINS}{what_for}."))
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        except (
            OSError
        ):  # a file system without locks: nobody can hold anything there, and nobody sweeps
            return path, descriptor
        if path.exists():
            return path, descriptor
        os.close(descriptor)
