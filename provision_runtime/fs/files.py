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
# A client that dropped a stale handle asks the server again at the next lookup, so a few tries
# in quick succession are enough.
STALE_TRIES = 5
STALE_PAUSE_S = 0.05
# <linux/fs.h>: SYNC_FILE_RANGE_WRITE, which starts writing and does not wait.
RANGE_WRITE = 2


def atomic_write(path: Path, content: bytes) -> None:
    """Readers see the whole old file or the whole new one; after return the new one survives a
    power cut.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        write_synced(temporary, content)
        temporary.replace(path)
    except BaseException:
        remove_if_exists(temporary)
        raise
    fsync_directory(path.parent)


def write_synced(path: Path, content: bytes) -> None:
    """Writes a new file; its bytes are on the disk when this returns. Raises FileExistsError."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def start_writeback(descriptor: int, offset: int, length: int) -> None:
    """Tells the kernel to start writing these bytes to the disk.

    Only a hint: nothing is durable before fsync, which also reports the errors.
    """
    function = _sync_file_range()
    if function is not None:
        function(descriptor, offset, length, RANGE_WRITE)


@lru_cache(maxsize=1)
def _sync_file_range() -> Any:
    """The C library's function, which the module os lacks; None on other systems than Linux."""
    function = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if function is not None:
        function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return function


def nearest_existing(path: Path) -> Path:
    """The path itself, or the nearest of its parents that exists."""
    while not path.exists():
        path = path.parent
    return path


def read_bytes(path: Path) -> bytes:
    """The whole file, reopened by its name when the handle is stale."""
    return retry_stale(path.read_bytes)


def retry_stale(
    action: Callable[[], T], tries: int = STALE_TRIES, sleep: Callable[[float], None] = time.sleep
) -> T:
    """The result of `action`; calls it again while it fails with a stale handle.

    It must open its files by path: a stale handle stays stale, and only a new lookup helps.
    """
    for _ in range(tries - 1):
        try:
            return action()
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
        sleep(STALE_PAUSE_S)
    return action()


def remove_if_exists(path: Path) -> None:
    try:
        path.unlink()
    except FileNotFoundError:
        return


def fsync_directory(path: Path) -> None:
    """Makes the names in a folder durable: a rename is only as durable as its folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in UNSYNCABLE:
            raise
    finally:
        os.close(descriptor)
