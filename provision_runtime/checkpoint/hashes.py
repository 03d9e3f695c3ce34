"""The two hashes of a file: SHA-256, always, and XXH128 where the package xxhash is installed.

SHA-256 names the file. XXH128 is several times as fast; `save` and `load` use it to tell whether
content is unchanged: two contents share an XXH128 by accident in 1 of 2**128 cases. It is not
cryptographic, so files are neither named nor looked up by it, and `verify` uses SHA-256. Its values
are fixed since xxHash 0.8.0, the package's 2.0 (https://github.com/Cyan4973/xxHash); large updates
release the interpreter's lock.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .manifest import FileEntry


def _import_xxh3_128() -> Any:
    try:
        from xxhash import xxh3_128
    except ImportError:  # also with xxhash 1
        return None
    return xxh3_128


XXH3_128 = _import_xxh3_128()


def xxh128_of(parts: Iterable[memoryview | bytes]) -> str | None:
    """Of all parts, one after the other; None if the package is not installed."""
    if XXH3_128 is None:
        return None
    digest = XXH3_128()
    for part in parts:
        digest.update(part)
    hexdigest: str = digest.hexdigest()
    return hexdigest


def digest_of(entry: FileEntry, quick: bool = True) -> tuple[str, Any, str]:
    """A hash of a committed file: its name, an object that computes it, and the committed value.

    quick: the fastest that was committed; otherwise SHA-256.
    """
    if quick and entry.xxh128 is not None and XXH3_128 is not None:
        return "XXH128", XXH3_128(), entry.xxh128
    return "SHA-256", hashlib.sha256(), entry.sha256
