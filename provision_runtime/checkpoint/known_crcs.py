"""The CRC-32 of what this process saved last at each place.

A record holds the CRC-32 of its elements, which takes longer to compute than XXH128. Whether a record
is unchanged is told by XXH128 alone, with the CRC that it had: if it is unchanged, so is that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .items import Place

# By the checkpoints' root and the place: the record's SHA-256 and its elements' CRC-32.
_crcs: dict[tuple[str, Place], tuple[str, int]] = {}


def add(root: str, place: Place, sha256: str, crc32: int) -> None:
    _crcs[(root, place)] = (sha256, crc32)


def find(root: str, place: Place, sha256: str) -> int | None:
    """None if this process has not saved a record of this SHA-256 there last."""
    known_sha256, crc32 = _crcs.get((root, place), ("", 0))
    return crc32 if known_sha256 == sha256 else None
