"""Values that every rank can predict for every other: small integers that depend on seed, round, rank and index.

Small integers add up without rounding, so a sum is right or wrong, with nothing in between. Every rank draws a table of
values, and all ranks look up the same place of their tables at an index: so the sum over ranks is itself a table, and
checking takes one look-up per element however many ranks there are.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

MASK = 0x7FFFFFFF
# Odd, so that an index and the same index in another half, quarter, ... of the buffer have different places.
MULTIPLIER = 0x45D9F3B
PLACE_BITS = 12
LARGEST = 1023
# Up to here a type holds every integer: 24, 11 and 8 significant bits.
EXACT = {"float32": 2**24, "float16": 2**11, "bfloat16": 2**8}
# float32 can add the largest value exactly over so many ranks.
MOST_RANKS = EXACT["float32"] // LARGEST
# Elements worked on at a time: bounds the memory that predicting takes.
CHUNK = 1 << 20


def largest(dtype: str, ranks: int) -> int:
    """The largest value that so many ranks can add exactly in this type, as a mask of bits; 0 where there is none."""
    most = min(EXACT[dtype] // ranks, LARGEST)
    return (1 << ((most + 1).bit_length() - 1)) - 1


def key(seed: int, turn: str, rank: int) -> int:
    digest = hashlib.sha256(f"{seed}/{turn}/{rank}".encode()).digest()
    return int.from_bytes(digest[:4], "big") & MASK


def table(rank_key: int, most: int = LARGEST, device: Any = "cpu") -> torch.Tensor:
    """A rank's values, as int64: products stay below 2**62, so nothing overflows."""
    import torch

    mixed = torch.arange(1 << PLACE_BITS, dtype=torch.int64, device=device)
    mixed.bitwise_xor_(rank_key)
    for shift in (16, 15):
        mixed.mul_(MULTIPLIER).bitwise_and_(MASK)
        mixed.bitwise_xor_(mixed >> shift)
    return mixed.bitwise_and_(most)


def places(start: int, count: int, device: Any) -> torch.Tensor:
    """Where in the tables the values of these indices are."""
    import torch

    index = torch.arange(start, start + count, dtype=torch.int64, device=device)
    return index.mul_(MULTIPLIER).bitwise_and_(MASK) >> (31 - PLACE_BITS)


def predicted(
    rank_key: int, start: int, count: int, device: Any, most: int = LARGEST
) -> torch.Tensor:
    """The values of one rank from an index on."""
    return table(rank_key, most, device)[places(start, count, device)]


def fill(target: torch.Tensor, rank_key: int, most: int = LARGEST, start: int = 0) -> None:
    own = table(rank_key, most, target.device).to(target.dtype)
    for offset in range(0, target.numel(), CHUNK):
        part = target[offset : offset + CHUNK]
        part.copy_(own[places(start + offset, part.numel(), target.device)])


def wrong(
    found: torch.Tensor, rank_keys: Sequence[int], most: int = LARGEST, start: int = 0
) -> tuple[int, tuple[int, float, int] | None]:
    """How many elements are not the sum of these ranks' values from `start` on, and the first: index, found, expected."""
    count, first = 0, None
    sums = sum(table(rank_key, most, found.device) for rank_key in rank_keys).to(found.dtype)
    for offset in range(0, found.numel(), CHUNK):
        part = found[offset : offset + CHUNK]
        expected = sums[places(start + offset, part.numel(), found.device)]
        bad = (part != expected).nonzero().flatten()
        count += int(bad.numel())
        if first is None and bad.numel():
            place = int(bad[0])
            first = (offset + place, float(part[place]), int(expected[place]))
    return count, first
