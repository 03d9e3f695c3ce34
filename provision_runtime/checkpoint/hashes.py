"""The hashes of a file.

With the package xxhash these are XXH128, several times as fast as SHA-256, and CRC-32, which any
Python can check; without it SHA-256. They name the file, tell whether content is unchanged, and find
damage: two contents share an XXH128 by accident in 1 of 2**128 cases. None is a signature. XXH128's
values are fixed since xxHash 0.8.0, the package's 2.0 (https://github.com/Cyan4973/xxHash); large
updates release the interpreter's lock.
"""

from __future__ import annotations

import hashlib
import zlib
from typing import Any


def _import_xxh3_128() -> Any:
    try:
        from xxhash import xxh3_128
    except ImportError:  # also with xxhash 1
        return None
    return xxh3_128


XXH3_128 = _import_xxh3_128()


def new(content: bytes | memoryview = b"") -> Any:
    """What computes the best hash there is."""
    return XXH3_128(content) if XXH3_128 else hashlib.sha256(content)


def digest(content_hash: str, content: bytes | memoryview) -> str:
    """Of a FileEntry: SHA-256 (64 digits), or XXH128 and CRC-32 (40). content_hash: hexadecimal, as
    `new` computes it.

    The CRC-32 reads all of the content (2.5 to 2.9 GB/s per core, measured) without the
    interpreter's lock.
    """
    return f"{content_hash}{zlib.crc32(content):08x}" if XXH3_128 else content_hash


class Crc32:
    """In the form of the other hashes."""

    def __init__(self) -> None:
        self._value = 0

    def update(self, content: bytes | memoryview) -> None:
        self._value = zlib.crc32(content, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


def content_hash(digest: str) -> str:
    """The part of a file's digest that `new` computes, where the package is as it was."""
    return digest if len(digest) == 64 else digest[:32]


def checker(digest: str) -> tuple[str, Any, str]:
    """How to check a file of this digest: the name of a hash, an object that computes it, and the
    value that it should have.
    """
    if len(digest) == 64:
        return "SHA-256", hashlib.sha256(), digest
    if XXH3_128:
        return "XXH128", XXH3_128(), digest[:32]
    return "CRC-32", Crc32(), digest[32:]


def has_digest(content: bytes, digest: str) -> bool:
    """Whether it is the content of a file of this digest."""
    _, computed, committed = checker(digest)
    computed.update(content)
    return bool(computed.hexdigest() == committed)
