"""Ranks in messages."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

# More names than this in one line are hard to read.
MAX_NAMES = 8


def name_ranks(ranks: Sequence[int]) -> str:
    """For messages: "rank 3", "ranks 0-3, 7", "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 5 more"."""
    names = []
    # Ranks in a row are as far from their positions.
    for _, run in groupby(enumerate(sorted(ranks)), lambda pair: pair[1] - pair[0]):
        numbers = [str(rank) for _, rank in run]
        names += [f"{numbers[0]}-{numbers[-1]}"] if len(numbers) > 2 else numbers
    text = ", ".join(names[:MAX_NAMES])
    if len(names) > MAX_NAMES:
        text += f" and {len(names) - MAX_NAMES} more"
    return f"{'ranks' if len(ranks) > 1 else 'rank'} {text}"
