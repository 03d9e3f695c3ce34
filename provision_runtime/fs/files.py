"""Single files and folders: written atomically, durable when the call returns, reopened if a handle
is stale.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T = TypeVar("T")

# After a stale handle (NFS, Lustre after a failover) look again: it is not an error.
TRANSIENT = (errno.ENOENT, errno.ESTALE)
# Some file systems cannot sync folders (CIFS, several FUSE drivers); renames there are as durable
# as they get.
UNSYNCABLE = (errno.EINVAL, errno.ENOTSUP)
# A client that dropped a stale handle queries the server at the next lookup, so a few tries in
# quick succession are enough.
STALE_TRIES = 5
STALE_PAUSE_S = 0.05
# <linux/fs.h>: SYNC_FILE_RANGE_WRITE, which starts writing and does not wait.
RANGE_WRITE = 2


def atomic_write(path: Path, content: bytes) -> None:
    """Replaces a file: readers see the whole old one or the whole new one. On return the new one
    survives a power cut.

    Args:
        path: The file. Its folder must exist.
        content: Its new content.

    Raises:
        OSError: If it cannot be written. The old file is then unchanged.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        write_synced(temporary, content)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


def write_synced(path: Path, content: bytes) -> None:
    """Writes a new file. On return its bytes are on the disk; its name is once its folder is synced
    (fsync_directory).

    Args:
        path: The file.
        content: Its content.

    Raises:
        FileExistsError: If the file exists.
        OSError: If it cannot be written.
    """
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def start_writeback(descriptor: int, offset: int, length: int) -> None:
    """Tells the kernel to start writing these bytes to the disk.

    Only a hint: nothing is durable before fsync, which also reports the errors.
    """
    _sync_file_range()(descriptor, offset, length, RANGE_WRITE)


@lru_cache(maxsize=1)
def _sync_file_range() -> Any:
    """Linux's function, which the module os lacks."""
    function = ctypes.CDLL(None).sync_file_range
    function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return function


def nearest_existing(path: Path) -> Path:
    """The path itself, or the nearest of its parents that exists."""
    while not path.exists():
        path = path.parent
    return path


def read_bytes(path: Path) -> bytes:
    """Reads a whole file, which is opened again by its name when the handle is stale (ESTALE).

    Args:
        path: The file.

    Returns:
        Its content.

    Raises:
        OSError: If it cannot be read.
    """
    return retry_stale(path.read_bytes)


def read_text(path: Path, errors: str = "replace") -> str:
    """The text of a file; empty if it cannot be read. For files of the kernel and of users."""
    try:
        return path.read_text(errors=errors)
    except OSError:
        return ""


def retry_stale(
    action: Callable[[], T], tries: int = STALE_TRIES, sleep: Callable[[float], None] = time.sleep
) -> T:
    """Calls an action again while it fails with a stale handle (ESTALE), as after a failover.

    Args:
        action: What to call. It must open its files by path: a stale handle stays stale, and only a
            new lookup helps.
        tries: How often to call it at most.
        sleep: Called with the seconds between two tries.

    Returns:
        The action's result.

    Raises:
        OSError: The action's own; ESTALE after the last try.
    """
    for _ in range(tries - 1):
        try:
            return action()
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
        sleep(STALE_PAUSE_S)
    return action()


def fsync_directory(path: Path) -> None:
    """Makes the names in a folder durable: a rename is only as durable as its folder.

    Does nothing where a file system cannot sync folders (CIFS, several FUSE drivers).

    Args:
        path: The folder.

    Raises:
        OSError: If it cannot be synced.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in UNSYNCABLE:
            raise
    finally:
        os.close(descriptor)
