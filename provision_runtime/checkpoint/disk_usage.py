"""Which bytes checkpoints share with each other, and so what removing some of them frees. Works without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, Hashable

from . import catalog, layout, manifest
from .backends.traits import Stat

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .backends import Backend
    from .manifest import FileEntry

# The files that one folder needs, by the key of their bytes.
Usage = Dict[Hashable, Stat]


def usage(backend: Backend, folder: str) -> Usage:
    """Of a committed or an unfinished folder; of one that vanished, what was still seen.

    Where files are referred to, their sizes are the manifest's: asking a store for each of them would be a request each.
    """
    content = (
        catalog.manifest_if_whole(backend, folder)
        if _refers(backend) and layout.parse(folder)
        else None
    )
    if content is None:
        return _seen(backend, folder, _files(backend, folder))
    told = {
        key(backend, folder, entry): Stat(entry.size, 1, key(backend, folder, entry))
        for entry in content.files
    }
    return {**told, **_seen(backend, folder, [manifest.NAME])}


def key(backend: Backend, folder: str, entry: FileEntry) -> Hashable:
    """The same for two files of two checkpoints only if they are one. Raises FileNotFoundError."""
    if _refers(backend):
        return (entry.home or folder, entry.name)
    return backend.stat(entry.home or folder, entry.name).key


def held(used: Usage) -> int:
    """Bytes of all files of one folder, whoever else has them."""
    return sum(stat.size for stat in used.values())


def total(usages: Iterable[Usage]) -> int:
    """Bytes of several folders, each file counted once."""
    return sum(
        stat.size for stat in {key: stat for used in usages for key, stat in used.items()}.values()
    )


def freed(usages: Mapping[str, Usage], going: Iterable[str]) -> int:
    """Bytes that are free once these folders are gone: a file goes with the last of its names, wherever that is."""
    gone = [usages[folder] for folder in going]
    after = _counted(usages)
    names = {key: max(stat.names, after[key]) for used in gone for key, stat in used.items()}
    for used in gone:
        for key in used:
            names[key] -= 1
    sizes = {key: stat.size for used in gone for key, stat in used.items()}
    return sum(sizes[key] for key, left in names.items() if left <= 0)


def own(usages: Mapping[str, Usage]) -> dict[str, int]:
    """What each folder alone would free."""
    users = _counted(usages)
    return {
        folder: sum(stat.size for key, stat in used.items() if max(stat.names, users[key]) == 1)
        for folder, used in usages.items()
    }


def _counted(usages: Mapping[str, Usage]) -> dict[Hashable, int]:
    """How many of the folders need each file."""
    users: dict[Hashable, int] = {}
    for used in usages.values():
        for key in used:
            users[key] = users.get(key, 0) + 1
    return users


def _seen(backend: Backend, folder: str, names: Iterable[str]) -> Usage:
    found: Usage = {}
    for name in names:
        try:
            stat = backend.stat(folder, name)
        except FileNotFoundError:
            continue
        found[stat.key] = stat
    return found


def _refers(backend: Backend) -> bool:
    return backend.traits.links == "reference"


def _files(backend: Backend, folder: str) -> list[str]:
    try:
        return backend.files(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
