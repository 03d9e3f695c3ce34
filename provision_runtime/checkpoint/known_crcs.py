"""The CRC-32 of what this process saved last in each file.

A record holds the CRC-32 of its elements, which takes longer to compute than XXH128. So XXH128 alone
tells whether a file is unchanged, with the CRCs that it had: if it is unchanged, so are they.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .items import BoxKey

# By the checkpoints' root and the first piece of a file: the file's SHA-256 and its records' CRCs.
_crcs: dict[tuple[str, BoxKey], tuple[str, list[int]]] = {}


def add(root: str, box_key: BoxKey, sha256: str, crcs: list[int]) -> None:
    _crcs[(root, box_key)] = (sha256, crcs)


def find(root: str, box_key: BoxKey, sha256: str) -> list[int] | None:
    """None if this process has not saved a file of this SHA-256 there last."""
    known_sha256, crcs = _crcs.get((root, box_key), ("", None))
    return crcs if known_sha256 == sha256 else None
