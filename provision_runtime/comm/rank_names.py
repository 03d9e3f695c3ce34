"""Ranks in messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# More names than this in one line are hard to read.
MAX_NAMES = 8


def name_ranks(ranks: Sequence[int]) -> str:
    """For messages: "rank 3", "ranks 0-3, 7", "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 5 more"."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    names = []
    for run in runs:
        if len(run) > 2:
            names.append(f"{run[0]}-{run[-1]}")
        else:
            names += [str(rank) for rank in run]
    text = ", ".join(names[:MAX_NAMES])
    if len(names) > MAX_NAMES:
        text += f" and {len(names) - MAX_NAMES} more"
    return f"{'ranks' if len(ranks) > 1 else 'rank'} {text}"
