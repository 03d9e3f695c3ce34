"""Files that this process found damaged: they are not linked into another checkpoint, so the next save writes their content anew.

By root and name: a name is the content's hash, and the same file under it may be linked into many checkpoints.
"""

from __future__ import annotations

_known: set[tuple[str, str]] = set()


def add(root: str, name: str) -> None:
    _known.add((root, name))


def has(root: str, name: str) -> bool:
    return (root, name) in _known


def clear(root: str, name: str) -> None:
    """It was written anew."""
    _known.discard((root, name))
