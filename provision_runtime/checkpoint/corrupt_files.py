"""Files that this process knows to be damaged: they are not linked into another checkpoint, so the next save writes their content anew.

By root and name: a name is the content's hash, and the same file under it may be linked into many checkpoints. A save tells all ranks
which of them they know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_known: set[tuple[str, str]] = set()


def add(root: str, *names: str) -> None:
    _known.update((root, name) for name in names)


def has(root: str, name: str) -> bool:
    return (root, name) in _known


def of(root: str) -> list[str]:
    return sorted(name for place, name in tuple(_known) if place == root)


def clear(root: str, names: Iterable[str]) -> None:
    """They were written anew, and committed: until then they are what a next save would find."""
    _known.difference_update((root, name) for name in names)
