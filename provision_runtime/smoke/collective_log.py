"""Which collectives this rank has called, in order, and whether all ranks called the same ones.

A collective that one rank skipped or called with another shape may hang, raise, or mix up values
without an error. Each call is logged before it is made, so the record is right in all three cases.
`compare` is pure.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Mapping, Sequence

from ..comm.rank_names import name_ranks
from ..dataclass import frozen
from ..report.text import format_count
from .outcome import Finding, grouped

# How many of the latest calls a rank remembers.
REMEMBERED = 256


@frozen
class Call:
    number: int  # from 1 on
    operation: str  # with shape and type


class CallLog:
    def __init__(self) -> None:
        self.count = 0
        self._digest = 0
        self._latest: deque[Call] = deque(maxlen=REMEMBERED)

    def log(self, operation: str) -> None:
        self.count += 1
        self._digest = zlib.crc32(operation.encode(), self._digest)
        self._latest.append(Call(self.count, operation))

    @property
    def summary(self) -> list[int]:
        """Equal on two ranks exactly when they called the same collectives in the same order (but
        for a CRC collision)."""
        return [self.count, self._digest]

    def latest(self) -> list[Call]:
        return list(self._latest)


def compare(latest_by_rank: Mapping[int, Sequence[Call]]) -> Finding | None:
    """The first collective in which ranks differ, by each rank's latest calls: a different call, or
    one call too few.

    Names the ranks that differ from the majority; of two halves, the one without rank 0.
    """
    calls: dict[int, dict[int, str]] = {}
    for rank, latest in sorted(latest_by_rank.items()):
        calls[rank] = {call.number: call.operation for call in latest}
    if not calls:
        return None
    # Numbers that all ranks still remember.
    for number in sorted(set.intersection(*map(set, calls.values()))):
        ranks_by_operation = grouped((calls[rank][number], rank) for rank in calls)
        # If several are equally common, the first.
        common = max(ranks_by_operation.values(), key=len)
        differing = [rank for rank in calls if rank not in common]
        if differing:
            message = (
                f"collective {number} is {calls[differing[0]][number]}, "
                f"but {calls[common[0]][number]} on rank {common[0]}"
            )
            return Finding("collective-mismatch", message, tuple(differing))
    counts = {rank: max(by_number, default=0) for rank, by_number in calls.items()}
    count = max(counts.values())
    short = [rank for rank in counts if counts[rank] < count]
    if not short:
        return None
    complete = [rank for rank in counts if rank not in short]
    message = (
        f"skipped {format_count(count - counts[short[0]], 'collective')}: "
        f"it called {counts[short[0]]}, {name_ranks(complete)} called {count}"
    )
    return Finding("collective-skipped", message, tuple(short))
