"""Where checkpoints are stored: in folders (local.py) or object stores (object_store.py).

Both have the same methods. Paths are the name of a folder below the root, and of a file in it. A
backend knows how its store does one step of a save durably; commit.py has the order of the steps.
All methods may raise OSError with its errno if the store fails (FileNotFoundError if something does
not exist).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Mapping, Optional, Union

from .base import Stat
from .fsspec_store import open_store
from .local import FileBackend
from .object_store import ObjectBackend

__all__ = ["Backend", "FileBackend", "ObjectBackend", "Root", "Stat", "Step", "open_root"]

Backend = Union[FileBackend, ObjectBackend]
# Where checkpoints are: a folder, or a URL that fsspec supports; inside of this package also what
# was opened.
Root = Union[str, "os.PathLike[str]", Backend]
# fsspec's, for a URL.
StorageOptions = Optional[Mapping[str, object]]
# The number of a step, or `latest`.
Step = Union[int, str]
# Kinds of URLs that name a folder of this machine.
LOCAL = ("file", "local")


def open_root(root: Root, storage_options: StorageOptions = None) -> Backend:
    """The backend for a folder, or for a URL that fsspec supports (`memory://`,
    `s3://bucket/prefix`).

    storage_options: fsspec's, for example `endpoint_url`; a folder has none (TypeError). Raises
    CheckpointError if fsspec does not support the kind of URL, or a package is missing.
    """
    if isinstance(root, (FileBackend, ObjectBackend)):
        return root
    text = os.fspath(root)
    scheme, separator, rest = text.partition("://")
    if separator and scheme not in LOCAL:
        return ObjectBackend(open_store(text, storage_options or {}))
    if storage_options:
        raise TypeError(f"{text} is a folder: it takes no {', '.join(sorted(storage_options))}")
    # Absolute, since the program may change its working directory during a save.
    return FileBackend(Path(rest if separator else text).absolute())
