"""Which bytes checkpoints share, and so what removing some of them frees.

Works without torch.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Dict, Hashable

from .backends import Stat

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .backends import Backend

# The files that one folder needs, by the key of their bytes.
Usage = Dict[Hashable, Stat]


def usage(backend: Backend, folder: str) -> Usage:
    """The files of a committed or unfinished folder; if it vanishes meanwhile, those read before."""
    try:
        names = backend.files(folder)
    except OSError:  # it vanished, or is a link that leads nowhere
        return {}
    return _stat_files(backend, folder, names)


def folder_bytes(files: Usage) -> int:
    """Bytes of all files of one folder, shared or not."""
    return sum(stat.size for stat in files.values())


def total_bytes(usages: Iterable[Usage]) -> int:
    """Bytes of several folders, each file counted once."""
    all_files: Usage = {}
    for files in usages:
        all_files.update(files)
    return folder_bytes(all_files)


def freed_bytes(usages: Mapping[str, Usage], removed: Iterable[str]) -> int:
    """Bytes that removing these folders frees: a file goes with the last of all its names."""
    folders = _count_folders(usages.values())
    removed_usages = [usages[folder] for folder in removed]
    removed_names = _count_folders(removed_usages)
    files: Usage = {}
    for usage_of_folder in removed_usages:
        files.update(usage_of_folder)
    freed = 0
    for file_key, stat in files.items():
        if removed_names[file_key] >= max(stat.names, folders[file_key]):
            freed += stat.size
    return freed


def _count_folders(usages: Iterable[Usage]) -> Counter[Hashable]:
    """How many of the folders need each file."""
    return Counter(file_key for files in usages for file_key in files)


def _stat_files(backend: Backend, folder: str, names: Iterable[str]) -> Usage:
    files: Usage = {}
    for name in names:
        try:
            stat = backend.stat(folder, name)
        except FileNotFoundError:
            continue
        files[stat.key] = stat
    return files
