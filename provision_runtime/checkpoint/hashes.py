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

# Of CRC-32, with the coefficient of x**0 in the highest bit.
POLYNOMIAL = 0xEDB88320
ONE, X = 1 << 31, 1 << 30


def _import_xxh3_128() -> Any:
    try:
        from xxhash import xxh3_128
    except ImportError:  # also with xxhash 1
        return None
    return xxh3_128


XXH3_128 = _import_xxh3_128()


def new() -> Any:
    """What computes the best hash there is."""
    return XXH3_128() if XXH3_128 else hashlib.sha256()


def digest(content_hash: str, crc32: int) -> str:
    """Of a FileEntry: SHA-256 (64 digits), or XXH128 and CRC-32 (40). content_hash: hexadecimal, as
    `new` computes it.
    """
    return f"{content_hash}{crc32:08x}" if XXH3_128 else content_hash


class Crc32:
    """In the form of the other hashes."""

    def __init__(self, content: bytes | memoryview = b"") -> None:
        self._value = zlib.crc32(content)

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


def has_digest(content: bytes | memoryview, digest: str) -> bool:
    """Whether the content has a hash of this many digits; XXH128 counts as right without the
    package, unless the CRC-32 follows it.
    """
    if len(digest) == 64:
        return hashlib.sha256(content).hexdigest() == digest
    if len(digest) == 8:
        return Crc32(content).hexdigest() == digest
    if XXH3_128:
        return bool(XXH3_128(content).hexdigest() == digest[:32])
    return not digest[32:] or has_digest(content, digest[32:])


def joined_crc32(first: int, second: int, length: int) -> int:
    """The CRC-32 of two contents, one after the other, from those of each. length: of the second.

    As zlib's crc32_combine does: the first is multiplied by x once for each bit of the second.
    """
    factor, power, bits = ONE, X, 8 * length
    while bits:
        if bits & 1:
            factor = _product(power, factor)
        power = _product(power, power)
        bits >>= 1
    return _product(factor, first) ^ second


def _product(first: int, second: int) -> int:
    """Of two polynomials, modulo that of CRC-32."""
    product = 0
    while first:
        if first & ONE:
            product ^= second
        first = first << 1 & 0xFFFFFFFF
        second = second >> 1 ^ (POLYNOMIAL if second & 1 else 0)
    return product
