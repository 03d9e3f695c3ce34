"""Values that every rank can predict for every other rank: small integers that depend on
round, rank and index.

Small integers add up without rounding, so a sum is either right or wrong. Every rank repeats a table
of values, so the sum over ranks is itself a table, and checking takes one comparison per element
however many ranks there are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

SEED = 1
LARGEST = 1023
# A prime: an index and the same index in another half, quarter, ... of the buffer have different
# values.
TABLE_LENGTH = 4093
# Up to here a type holds every integer: 24, 11 and 8 significant bits.
EXACT = {"float32": 2**24, "float16": 2**11, "bfloat16": 2**8}
# Elements processed at a time: bounds the memory that predicting takes.
CHUNK = 256 * TABLE_LENGTH


def largest(dtype: str, ranks: int) -> int:
    """The largest value that this many ranks can add exactly in this type. Of more ranks than it can
    count, as many send values, and the others zeros."""
    return min(EXACT[dtype] // min(ranks, EXACT[dtype]), LARGEST)


def key(round_name: str, rank: int) -> int:
    digest = hashlib.sha256(f"{SEED}/{round_name}/{rank}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def table(rank_key: int, most: int = LARGEST) -> torch.Tensor:
    import torch

    generator = torch.Generator().manual_seed(rank_key)
    return torch.randint(most + 1, (TABLE_LENGTH,), generator=generator)


def fill(target: torch.Tensor, rank_key: int, most: int = LARGEST) -> None:
    values = _chunk(table(rank_key, most), target)
    for part in target.split(CHUNK):
        part.copy_(values[: part.numel()])


def count_wrong(
    actual: torch.Tensor, rank_keys: Sequence[int], most: int = LARGEST
) -> tuple[int, tuple[int, float, int] | None]:
    """How many elements are not the sum of these ranks' values.

    And the first wrong one: its index, its value and the expected value.
    """
    count, first = 0, None
    expected = _chunk(sum(table(rank_key, most) for rank_key in rank_keys), actual)
    for number, part in enumerate(actual.split(CHUNK)):
        wrong = (part != expected[: part.numel()]).nonzero().flatten()
        count += int(wrong.numel())
        if first is None and wrong.numel():
            index = int(wrong[0])
            first = (number * CHUNK + index, float(part[index]), int(expected[index]))
    return count, first


def _chunk(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The table, repeated, in the type and on the device of this tensor."""
    return values.to(like.device, like.dtype).repeat(CHUNK // TABLE_LENGTH)
