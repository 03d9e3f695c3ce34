"""File operations that also work on shared file systems, for the smoke test and for training code.

files.py writes and reads whole files; visibility.py makes folders that all ranks see. Nothing here
imports torch. Internal are mounts.py, which says which file system a path is on, and what else
files.py has.
"""

from __future__ import annotations

from . import files as files
from .files import atomic_write, fsync_directory, read_bytes, retry_stale, write_synced
from .visibility import NotVisible, exists, is_visible, make_directory, wait_until_visible

__all__ = [
    "NotVisible",
    "atomic_write",
    "exists",
    "fsync_directory",
    "is_visible",
    "make_directory",
    "read_bytes",
    "retry_stale",
    "wait_until_visible",
    "write_synced",
]
