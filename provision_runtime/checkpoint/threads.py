"""How many threads hash and write at a time."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .backends import Backend

# Hashing and writing overlap (hashlib and write() leave the interpreter to others). Each worker holds one piece of at most
# items.PIECE: 224 MiB where all are staged from a GPU.
WORKERS = 7
# What goes to a store of objects is held twice: what is staged is joined into the one request's body.
STORING = 3


def hashing_threads() -> int:
    """How many of the workers hash at a time. More than the processors that this rank can count on would only take turns."""
    processors = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return min(WORKERS, max(2, processors // int(os.environ.get("LOCAL_WORLD_SIZE") or 1)))


def workers(backend: Backend) -> int:
    """Of a disk, whose syncs come last, one more than hash: others would only keep them from the processors (measured: 7 were slower
    than 3 on 2 processors)."""
    return min(WORKERS, hashing_threads() + 1) if backend.traits.sync else STORING
