"""The two hashes of a file: SHA-256, always, which names it, and XXH128 where the package xxhash is installed, which is several times
as fast.

XXH128 tells whether content is still what it was, in `save` and in `load`: two contents have the same one by accident in 1 of 2**128
cases. It is not cryptographic, so nothing is named by it or found by it, and `verify` asks for SHA-256. Its values are
fixed since xxHash 0.8.0, the package's 2.0 (https://github.com/Cyan4973/xxHash); large updates leave the interpreter to other threads.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .manifest import FileEntry


def _xxh3_128() -> Any:
    try:
        from xxhash import xxh3_128
    except ImportError:  # also of xxhash 1
        return None
    return xxh3_128


XXH3_128 = _xxh3_128()


@dataclass(frozen=True)
class Hashes:
    """In hexadecimal digits; xxh128: None where the package is not there, or nobody asks for it."""

    sha256: str
    xxh128: str | None


def xxh128_of(parts: Iterable[memoryview | bytes]) -> str | None:
    """Of all the parts, one after the other; None where the package is not there."""
    if XXH3_128 is None:
        return None
    digest = XXH3_128()
    for part in parts:
        digest.update(part)
    value: str = digest.hexdigest()
    return value


def quickest_of(entry: FileEntry) -> tuple[str, Any, str]:
    """The hash of a committed file that takes the least time here: its name, an object that makes it, and what was committed."""
    if entry.xxh128 is not None and XXH3_128 is not None:
        return "XXH128", XXH3_128(), entry.xxh128
    return sha256_of(entry)


def sha256_of(entry: FileEntry) -> tuple[str, Any, str]:
    return "SHA-256", hashlib.sha256(), entry.sha256
