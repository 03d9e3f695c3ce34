"""File-system steps that hold on shared file systems too; for the smoke test and for training code.

files.py writes and reads whole files, waiting.py waits until a path can be seen, together.py lets one rank decide or
make and all the others learn of it. Nothing here imports torch.
"""

from __future__ import annotations

from ..comm.collective import RankFailed, barrier, decide, each, exists, make_directory
from .files import (
    TRANSIENT,
    UNSYNCABLE,
    atomic_write,
    fsync_directory,
    read_bytes,
    remove_if_there,
    retry_stale,
    start_writeback,
    write_synced,
)
from .visibility import NotVisible, is_visible, wait_until_visible

__all__ = [
    "TRANSIENT",
    "UNSYNCABLE",
    "NotVisible",
    "RankFailed",
    "atomic_write",
    "barrier",
    "decide",
    "each",
    "exists",
    "fsync_directory",
    "is_visible",
    "make_directory",
    "read_bytes",
    "remove_if_there",
    "retry_stale",
    "start_writeback",
    "wait_until_visible",
    "write_synced",
]
