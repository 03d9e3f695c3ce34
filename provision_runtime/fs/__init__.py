"""File operations that also work on shared file systems, for the smoke test and for training code.

files.py writes and reads whole files; visibility.py makes folders that all ranks see; mounts.py
says which file system a path is on. Nothing here imports torch.
"""

from __future__ import annotations

from .files import (
    TRANSIENT,
    UNSYNCABLE,
    atomic_write,
    fsync_directory,
    nearest_existing,
    read_bytes,
    remove_if_exists,
    retry_stale,
    start_writeback,
    write_synced,
)
from .visibility import NotVisible, exists, is_visible, make_directory, wait_until_visible

__all__ = [
    "TRANSIENT",
    "UNSYNCABLE",
    "NotVisible",
    "atomic_write",
    "exists",
    "fsync_directory",
    "is_visible",
    "make_directory",
    "nearest_existing",
    "read_bytes",
    "remove_if_exists",
    "retry_stale",
    "start_writeback",
    "wait_until_visible",
    "write_synced",
]
