"""Which bytes checkpoints share with each other, and so what removing some of them frees. Works without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, Hashable

from . import finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .backends import Backend, Stat

# The files that one folder needs, by the key of their bytes.
Usage = Dict[Hashable, "Stat"]


def usage(backend: Backend, folder: str) -> Usage:
    """Of a committed or an unfinished folder; of one that vanished, what was still seen."""
    places = [(folder, name) for name in _files(backend, folder)]
    if backend.traits.links == "reference":
        content = finding.manifest_if_whole(backend, folder)
        places += [(entry.home, entry.name) for entry in content.files if entry.home] if content else []
    found: Usage = {}
    for home, name in places:
        try:
            stat = backend.stat(home, name)
        except FileNotFoundError:
            continue
        found[stat.key] = stat
    return found


def held(used: Usage) -> int:
    """Bytes of all files of one folder, whoever else has them."""
    return sum(stat.size for stat in used.values())


def total(usages: Iterable[Usage]) -> int:
    """Bytes of several folders, each file counted once."""
    return sum(stat.size for stat in {key: stat for used in usages for key, stat in used.items()}.values())


def freed(usages: Mapping[str, Usage], going: Iterable[str]) -> int:
    """Bytes that are free once these folders are gone: a file goes with the last of its names, wherever that is."""
    gone = [usages[folder] for folder in going]
    after: dict[Hashable, int] = {}
    for used in usages.values():
        for key in used:
            after[key] = after.get(key, 0) + 1
    names = {key: max(stat.names, after[key]) for used in gone for key, stat in used.items()}
    for used in gone:
        for key in used:
            names[key] -= 1
    sizes = {key: stat.size for used in gone for key, stat in used.items()}
    return sum(sizes[key] for key, left in names.items() if left <= 0)


def _files(backend: Backend, folder: str) -> list[str]:
    try:
        return backend.files(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
