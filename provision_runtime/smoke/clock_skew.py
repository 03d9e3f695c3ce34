"""How far the ranks' wall clocks are apart, measured through the store, with the bound that its round trip leaves.

Rank 0 tells its time, the others ask (Cristian's algorithm: Distributed Computing 3, 1989). The answer was given somewhere
between question and answer, so half of the quickest round trip bounds the error.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from .outcome import Finding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..comm.store import StoreClient

TRIES = 3
PAUSE_S = 0.0005
# Munge refuses credentials after minutes, TLS certificates of the future at once; what NTP keeps is milliseconds.
TOLERATED_S = 1.0


def tell(mailbox: StoreClient, asking: int, deadline: float) -> None:
    """On rank 0: answer one rank's questions."""
    for turn in range(TRIES):
        while mailbox.peek(f"clock/{asking}/{turn}") is None:
            if time.monotonic() > deadline:
                return
            time.sleep(PAUSE_S)
        mailbox.set(f"clock/{asking}/{turn}/answer", time.time())


def ask(
    mailbox: StoreClient, rank: int, deadline: float, ahead_s: float = 0.0
) -> dict[str, float] | None:
    """On another rank: its skew against rank 0 in seconds (positive: ahead) and the bound. ahead_s: to rehearse a wrong clock."""
    best: dict[str, float] | None = None
    for turn in range(TRIES):
        asked = time.monotonic()
        mailbox.set(f"clock/{rank}/{turn}", True)
        answer = None
        while answer is None:
            answer = mailbox.peek(f"clock/{rank}/{turn}/answer")
            if time.monotonic() > deadline:
                return best
            time.sleep(PAUSE_S if answer is None else 0)
        round_trip = time.monotonic() - asked
        skew = time.time() + ahead_s - round_trip / 2 - answer
        if best is None or round_trip / 2 < best["bound_s"]:
            best = {"skew_s": round(skew, 6), "bound_s": round(round_trip / 2, 6)}
    return best


def judge(skews: Sequence[dict[str, Any] | None]) -> tuple[Finding, ...]:
    """The ranks whose clocks are off, given each rank's skew against rank 0, measured against what most ranks say."""
    known = sorted((skew["skew_s"] for skew in skews if skew is not None), key=float)
    if not known:
        return ()
    middles = known[(len(known) - 1) // 2 : len(known) // 2 + 1]
    usual = min(middles, key=abs)
    found = []
    for rank, skew in enumerate(skews):
        off = 0.0 if skew is None else skew["skew_s"] - usual
        if skew is not None and abs(off) - skew["bound_s"] > TOLERATED_S:
            way = "ahead of" if off > 0 else "behind"
            found.append(
                Finding(
                    "clock-skew",
                    f"its clock is {abs(off):.1f} s {way} the others' (±{skew['bound_s']:.3f} s)",
                    (rank,),
                )
            )
    return tuple(found)
