"""Where checkpoints are stored: in folders (local.py) or object stores (object_store.py)."""

from __future__ import annotations

import os
from pathlib import Path

from .base import Backend, Root, Stat, Step, StorageOptions, Traits
from .fsspec_store import open_store
from .local import FileBackend
from .object_store import ObjectBackend

__all__ = [
    "Backend",
    "FileBackend",
    "ObjectBackend",
    "Root",
    "Stat",
    "Step",
    "StorageOptions",
    "Traits",
    "open_root",
]

# Kinds of URLs that name a folder of this machine.
LOCAL = ("file", "local")


def open_root(root: Root, storage_options: StorageOptions = None) -> Backend:
    """The backend for a folder, or for a URL that fsspec supports (`memory://`,
    `s3://bucket/prefix`).

    storage_options: fsspec's, for example `endpoint_url`; a folder has none (TypeError). Raises
    CheckpointError if fsspec does not support the kind of URL, or a package is missing.
    """
    if not isinstance(root, (str, os.PathLike)):
        return root
    text = os.fspath(root)
    scheme, separator, rest = text.partition("://")
    if separator and scheme not in LOCAL:
        return ObjectBackend(open_store(text, storage_options or {}))
    if storage_options:
        raise TypeError(f"{text} is a folder: it takes no {', '.join(sorted(storage_options))}")
    # Absolute, since the program may change its working directory during a save.
    return FileBackend(Path(rest if separator else text).absolute())
