"""Which collectives this rank has called, in order, and whether all ranks called the same ones. Comparing is pure.

A collective that one rank left out or called with another shape may hang, raise, or mix up values without an error.
Each call is noted before it is made, so the record holds in all three cases.
"""

from __future__ import annotations

import sys
import zlib
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..comm.ranks import name_ranks
from .outcome import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# How many of the latest calls a rank remembers with their call sites.
REMEMBERED = 256


@dataclass(frozen=True)
class Call:
    """One collective: its number from 1 on, what it was, and the lines of the program that led to it."""

    number: int
    what: str
    site: str


class CallLog:
    def __init__(self) -> None:
        self.count = 0
        self._digest = 0
        self._latest: deque[Call] = deque(maxlen=REMEMBERED)

    def note(self, what: str, depth: int = 2) -> Call:
        """depth: how many frames above this one the caller of interest is."""
        self.count += 1
        self._digest = zlib.crc32(what.encode(), self._digest)
        call = Call(self.count, what, _site(depth))
        self._latest.append(call)
        return call

    @property
    def summary(self) -> list[int]:
        """Equal on two ranks exactly when they called the same collectives in the same order (but for a CRC collision)."""
        return [self.count, self._digest]

    def latest(self, number: int = REMEMBERED) -> list[list[Any]]:
        return [[call.number, call.what, call.site] for call in list(self._latest)[-number:]]


def _site(depth: int) -> str:
    """`file.py:12 in run < other.py:34 in main`: the line that called, and the one that called that."""
    frame = sys._getframe(depth)
    places: list[str] = []
    while frame is not None and len(places) < 2:
        name = "/".join(frame.f_code.co_filename.rsplit("/", 2)[-2:])
        places.append(f"{name}:{frame.f_lineno} in {frame.f_code.co_name}")
        frame = frame.f_back  # type: ignore[assignment]
    return " < ".join(places)


def compare(latest: Mapping[int, Sequence[Sequence[Any]]]) -> Finding | None:
    """The first collective in which ranks differ, given each rank's latest calls: another one, or one too few.

    The ranks named are those that differ from the most; of two halves, those that rank 0 does not belong to.
    """
    calls = {
        rank: {number: (what, site) for number, what, site in listed}
        for rank, listed in sorted(latest.items())
    }
    known = set.intersection(*(set(by_number) for by_number in calls.values())) if calls else set()
    for number in sorted(known):
        said = {rank: by_number[number][0] for rank, by_number in calls.items()}
        usual = _usual(said)
        odd = [rank for rank, what in said.items() if what != usual]
        if odd:
            return _mismatch(
                number, calls, odd, next(rank for rank, what in said.items() if what == usual)
            )
    return _shortfall({rank: max(by_number, default=0) for rank, by_number in calls.items()})


def _usual(said: Mapping[int, str]) -> str:
    counted = Counter(said.values())
    most = max(counted.values())
    return next(what for what in said.values() if counted[what] == most)


def _mismatch(
    number: int, calls: Mapping[int, Mapping[int, tuple[str, str]]], odd: Sequence[int], usual: int
) -> Finding:
    what, site = calls[odd[0]][number]
    expected, expected_site = calls[usual][number]
    message = (
        f"collective {number} is {what} ({site}), but {expected} on rank {usual} ({expected_site})"
    )
    return Finding("collective-mismatch", message, tuple(odd))


def _shortfall(counts: Mapping[int, int]) -> Finding | None:
    most = max(counts.values(), default=0)
    short = [rank for rank, count in counts.items() if count < most]
    if not short:
        return None
    missed = most - counts[short[0]]
    others = [rank for rank in counts if rank not in short]
    left_out = f"left out {missed} collective{'s' if missed > 1 else ''}"
    return Finding(
        "collective-skipped",
        f"{left_out}: {counts[short[0]]} were called, on {name_ranks(others)} {most}",
        tuple(short),
    )
