"""Values that every rank can predict for every other rank: small integers that depend on
round, rank and index.

Small integers add up without rounding, so a sum is either right or wrong. Every
rank has a table of values, and all ranks look up the same slot of their tables at an index: so the
sum over ranks is itself a table, and checking takes one look-up per element however many ranks
there are.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

SEED = 1
MASK = 0x7FFFFFFF
# Odd, so that an index and the same index in another half, quarter, ... of the buffer have
# different slots.
MULTIPLIER = 0x45D9F3B
SLOT_BITS = 12
LARGEST = 1023
# Up to here a type holds every integer: 24, 11 and 8 significant bits.
EXACT = {"float32": 2**24, "float16": 2**11, "bfloat16": 2**8}
# Elements processed at a time: bounds the memory that predicting takes.
CHUNK = 1 << 20


def largest(dtype: str, ranks: int) -> int:
    """The largest value that this many ranks can add exactly in this type, as a bit mask; 0 if no
    value fits."""
    most = min(EXACT[dtype] // ranks, LARGEST)
    return (1 << ((most + 1).bit_length() - 1)) - 1


def key(round_name: str, rank: int) -> int:
    """The seed of one rank's values in one round."""
    digest = hashlib.sha256(f"{SEED}/{round_name}/{rank}".encode()).digest()
    return int.from_bytes(digest[:4], "big") & MASK


def table(rank_key: int, most: int = LARGEST, device: Any = "cpu") -> torch.Tensor:
    """A rank's values, as int64: products stay below 2**62, so nothing overflows."""
    import torch

    mixed = torch.arange(1 << SLOT_BITS, dtype=torch.int64, device=device)
    mixed.bitwise_xor_(rank_key)
    for shift in (16, 15):
        mixed.mul_(MULTIPLIER).bitwise_and_(MASK)
        mixed.bitwise_xor_(mixed >> shift)
    return mixed.bitwise_and_(most)


def slots(start: int, count: int, device: Any) -> torch.Tensor:
    """The table slots of these indices."""
    import torch

    index = torch.arange(start, start + count, dtype=torch.int64, device=device)
    return index.mul_(MULTIPLIER).bitwise_and_(MASK) >> (31 - SLOT_BITS)


def fill(target: torch.Tensor, rank_key: int, most: int = LARGEST) -> None:
    values = table(rank_key, most, target.device).to(target.dtype)
    for offset in range(0, target.numel(), CHUNK):
        part = target[offset : offset + CHUNK]
        part.copy_(values[slots(offset, part.numel(), target.device)])


def count_wrong(
    actual: torch.Tensor, rank_keys: Sequence[int], most: int = LARGEST
) -> tuple[int, tuple[int, float, int] | None]:
    """How many elements are not the sum of these ranks' values.

    And the first wrong one: its index, its value and the expected value.
    """
    count, first = 0, None
    sums = sum(table(rank_key, most, actual.device) for rank_key in rank_keys).to(actual.dtype)
    for offset in range(0, actual.numel(), CHUNK):
        part = actual[offset : offset + CHUNK]
        expected = sums[slots(offset, part.numel(), actual.device)]
        wrong = (part != expected).nonzero().flatten()
        count += int(wrong.numel())
        if first is None and wrong.numel():
            index = int(wrong[0])
            first = (offset + index, float(part[index]), int(expected[index]))
    return count, first
