"""File-system steps that hold on shared file systems too: whole files, synced folders, one maker and many waiters.

Owns single steps. What they add up to (a report, a checkpoint) belongs to the callers. Clocks come in as arguments, so
that waiting can be tested without waiting.
"""

from __future__ import annotations

import errno
import os
import secrets
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# A handle that went stale (NFS, Lustre after a failover) is worth a second look, not an error.
TRANSIENT = (errno.ENOENT, errno.ESTALE)
# Folders cannot be synced on some file systems (CIFS, several FUSE drivers); their renames are as durable as they get.
UNSYNCABLE = (errno.EINVAL, errno.ENOTSUP)
POLL_S = 0.02


class NotVisible(TimeoutError):
    """A path that another rank made did not appear here in time."""


def atomic_write(path: Path, content: bytes) -> None:
    """Readers see the old file or the new one, whole; after return the new one survives a power cut."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        write_synced(temporary, content)
        temporary.replace(path)
    except BaseException:
        remove_if_there(temporary)
        raise
    fsync_directory(path.parent)


def write_synced(path: Path, content: bytes) -> None:
    """A new file (never one that exists), its bytes on the disk when this returns."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def remove_if_there(path: Path) -> None:
    try:
        path.unlink()
    except FileNotFoundError:
        return


def fsync_directory(path: Path) -> None:
    """Make the names in a folder durable: a rename is only as lasting as the folder that holds it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in UNSYNCABLE:
            raise
    finally:
        os.close(descriptor)


def wait_until_visible(
    path: Path,
    deadline_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> float:
    """Seconds until the path was seen here. Raises NotVisible after the deadline."""
    started = clock()
    while not _is_visible(path):
        waited = clock() - started
        if waited >= deadline_s:
            raise NotVisible(f"{path} did not become visible here within {deadline_s:g} s: is its folder shared?")
        sleep(POLL_S)
    return clock() - started


def make_directory_together(path: Path, rank: int, barrier: Callable[[], None], deadline_s: float) -> None:
    """Rank 0 makes the folder, every other rank waits for it.

    The barrier is reached on rank 0 also when making fails, so that the others do not wait for a rank that has left.
    """
    try:
        if rank == 0:
            path.mkdir(parents=True, exist_ok=True)
            fsync_directory(path.parent)
    finally:
        barrier()
    wait_until_visible(path, deadline_s)


def _is_visible(path: Path) -> bool:
    """Whether the path exists, asked afresh: listing the parent makes an NFS client drop a cached "no such file"."""
    try:
        path.stat()
        return True
    except OSError as error:
        if error.errno not in TRANSIENT:
            raise
    try:
        return any(entry.name == path.name for entry in path.parent.iterdir())
    except OSError as error:
        if error.errno not in TRANSIENT:
            raise
        return False
