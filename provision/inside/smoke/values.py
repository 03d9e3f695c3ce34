"""Values that every rank can predict for every other: small integers from a hash of seed, round, rank and index.

Small integers add up without rounding, so a sum is right or wrong, with nothing in between.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

MASK = 0x7FFFFFFF
MULTIPLIER = 0x45D9F3B
LARGEST = 1023
# float32 holds every integer up to 2**24: so many ranks can add the largest value exactly.
MOST_RANKS = 2**24 // LARGEST
# Elements worked on at a time: bounds the memory that predicting takes.
CHUNK = 1 << 20


def key(seed: int, turn: str, rank: int) -> int:
    digest = hashlib.sha256(f"{seed}/{turn}/{rank}".encode()).digest()
    return int.from_bytes(digest[:4], "big") & MASK


def predicted(rank_key: int, start: int, count: int, device: Any) -> torch.Tensor:
    """The values of one rank from an index on, as int64: products stay below 2**62, so nothing overflows."""
    import torch

    mixed = torch.arange(start, start + count, dtype=torch.int64, device=device)
    mixed.bitwise_xor_(rank_key)
    for shift in (16, 15):
        mixed.mul_(MULTIPLIER).bitwise_and_(MASK)
        mixed.bitwise_xor_(mixed >> shift)
    return mixed.bitwise_and_(LARGEST)


def fill(target: torch.Tensor, rank_key: int) -> None:
    for start in range(0, target.numel(), CHUNK):
        part = target[start : start + CHUNK]
        part.copy_(predicted(rank_key, start, part.numel(), target.device))


def wrong(found: torch.Tensor, rank_keys: list[int]) -> tuple[int, tuple[int, float, int] | None]:
    """How many elements are not the sum of these ranks' values, and the first: index, found, expected."""
    count, first = 0, None
    for start in range(0, found.numel(), CHUNK):
        part = found[start : start + CHUNK]
        expected = sum(predicted(rank_key, start, part.numel(), found.device) for rank_key in rank_keys)
        places = (part != expected).nonzero().flatten()
        count += int(places.numel())
        if first is None and places.numel():
            place = int(places[0])
            first = (start + place, float(part[place]), int(expected[place]))
    return count, first
