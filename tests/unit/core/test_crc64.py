"""CRC-64 against the table of a plain, slow definition."""

from __future__ import annotations

import random

import pytest

from provision.core.crc64 import BLOCK, MASK, crc64

CONTENT = random.Random(64).randbytes(2 * BLOCK + 100)


def by_bits(content: bytes) -> int:
    register = MASK
    for byte in content:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (0xD800000000000000 if register & 1 else 0)
    return register ^ MASK


def test_the_published_check_value() -> None:
    assert crc64(b"123456789") == 0xB90956C775A41001


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 100, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 100])
def test_any_size_in_one_or_two_pieces(size: int) -> None:
    content = CONTENT[:size]
    expected = by_bits(content)
    assert crc64(content) == expected
    assert crc64(content[size // 3 :], crc64(content[: size // 3])) == expected
