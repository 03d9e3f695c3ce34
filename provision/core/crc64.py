"""CRC-64 as ISO 3309 defines it and tar-split uses it; no module of Python has this polynomial."""

from __future__ import annotations

MASK = (1 << 64) - 1
# The block that is one integer: large enough for few steps, small enough for a processor's cache.
BLOCK = 1 << 16


def crc64(content: bytes, checksum: int = 0) -> int:
    """The checksum of what `checksum` is of, followed by `content`.

    A block is one polynomial over GF(2), its highest power in the lowest bit. x^64 is x^4 + x^3 + x + 1,
    and squaring keeps that form: x^(64 s) is (x^s + 1)(x^3s + 1) if s is a power of two. So the half
    with the higher powers is added to the other half with two shifts, until 64 bits are left.
    """
    register = ~checksum & MASK
    for start in range(0, len(content), BLOCK):
        block = content[start : start + BLOCK]
        value = int.from_bytes(block, "little") ^ register
        size = 8 * len(block) + 64  # as if 64 zero bits followed
        half = 64
        while 2 * half < size:
            half *= 2
        value <<= 2 * half - size
        while half >= 64:
            step = half // 64
            product = _multiply(value & ((1 << half) - 1), step)
            beyond = product & ((1 << 4 * step) - 1)  # x^half
            value = value >> half ^ product >> 4 * step ^ _multiply(beyond, step) << half - 8 * step
            half //= 2
        register = value
    return ~register & MASK


def _multiply(polynomial: int, step: int) -> int:
    """The product with (x^step + 1)(x^3step + 1); it is 4 steps longer."""
    product = (polynomial << step) ^ polynomial
    return (product << 3 * step) ^ product
