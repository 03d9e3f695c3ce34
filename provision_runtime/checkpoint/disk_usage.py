"""Which bytes checkpoints share, and so what removing some of them frees.

Works without torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Dict

from .storage import FileKey, Stat, Storage

# The files that one folder needs, by the key of their bytes.
Usage = Dict[FileKey, Stat]


def usage(storage: Storage, folder: str) -> Usage:
    """The files of a committed or unfinished folder; if it vanishes meanwhile, those read before."""
    files: Usage = {}
    with suppress(OSError):  # it vanished, or is a link that leads nowhere
        for name in storage.files(folder):
            with suppress(FileNotFoundError):
                stat = storage.stat(folder, name)
                files[stat.key] = stat
    return files


def total_bytes(usages: Iterable[Usage]) -> int:
    """Bytes of several folders, each file counted once."""
    files = {key: stat for usage_of_folder in usages for key, stat in usage_of_folder.items()}
    return sum(stat.size for stat in files.values())


def freed_bytes(usages: Mapping[str, Usage], removed: Iterable[str]) -> int:
    """Bytes that removing these folders frees: a file goes with the last of all its names."""
    files: Usage = {}
    names: Counter[FileKey] = Counter()
    for folder in removed:
        files.update(usages[folder])
        names.update(usages[folder].keys())
    return sum(stat.size for key, stat in files.items() if names[key] >= stat.names)
