"""Files that this process knows to be corrupt: a save does not link them, but writes their content
again.

Kept by root and name: a name is the hash of the content, and one file may be linked into many
checkpoints under it. During a save the ranks exchange the names.
"""

from __future__ import annotations

from collections.abc import Iterable

_corrupt: set[tuple[str, str]] = set()


def add(root: str, *names: str) -> None:
    _corrupt.update((root, name) for name in names)


def has(root: str, name: str) -> bool:
    return (root, name) in _corrupt


def names_in(root: str) -> list[str]:
    return sorted(name for corrupt_root, name in tuple(_corrupt) if corrupt_root == root)


def forget(root: str, names: Iterable[str]) -> None:
    """Call it once new copies are committed: until then a save would link the corrupt files."""
    _corrupt.difference_update((root, name) for name in names)
