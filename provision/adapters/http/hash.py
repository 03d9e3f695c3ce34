"""Hashes of files."""

from __future__ import annotations

import hashlib
from pathlib import Path

PIECE_BYTES = 1 << 20


def sha256_of(path: Path) -> str:
    """The sha256 of a file, which is never in memory as a whole."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()
