"""How far the ranks' wall clocks are apart, measured through the store, with an error bound.

Rank 0 sends its time, the others ask for it (Cristian's algorithm: Distributed Computing 3, 1989).
The time was read somewhere between question and answer, so half of the shortest round trip bounds
the error.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from .outcome import Finding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..comm.store import StoreClient

ROUNDS = 3
PAUSE_S = 0.0005
# Munge refuses credentials after minutes, TLS refuses certificates from the future at once; NTP
# keeps clocks within milliseconds.
TOLERATED_S = 1.0


def serve(client: StoreClient, rank: int, deadline: float) -> None:
    """On rank 0: answers the questions of one rank."""
    for number in range(ROUNDS):
        while client.peek(f"clock/{rank}/{number}") is None:
            if time.monotonic() > deadline:
                return
            time.sleep(PAUSE_S)
        client.set(f"clock/{rank}/{number}/answer", time.time())


def measure(
    client: StoreClient, rank: int, deadline: float, ahead_s: float = 0.0
) -> dict[str, float] | None:
    """On another rank: its skew against rank 0 in seconds (positive: ahead) and the bound.

    ahead_s: added to this rank's clock, to rehearse a wrong one.
    """
    best: dict[str, float] | None = None
    for number in range(ROUNDS):
        started = time.monotonic()
        client.set(f"clock/{rank}/{number}", True)
        answer = None
        while answer is None:
            answer = client.peek(f"clock/{rank}/{number}/answer")
            if time.monotonic() > deadline:
                return best
            time.sleep(PAUSE_S if answer is None else 0)
        round_trip = time.monotonic() - started
        skew = time.time() + ahead_s - round_trip / 2 - answer
        if best is None or round_trip / 2 < best["bound_s"]:
            best = {"skew_s": round(skew, 6), "bound_s": round(round_trip / 2, 6)}
    return best


def findings(skews: Sequence[dict[str, Any] | None]) -> tuple[Finding, ...]:
    """The ranks whose clocks are off from the median, by each rank's skew against rank 0."""
    values = sorted(float(skew["skew_s"]) for skew in skews if skew is not None)
    if not values:
        return ()
    # Of two middle values, the one closer to rank 0's clock.
    middle = values[(len(values) - 1) // 2 : len(values) // 2 + 1]
    usual = min(middle, key=abs)
    result = []
    for rank, skew in enumerate(skews):
        if skew is None:
            continue
        difference = skew["skew_s"] - usual
        if abs(difference) - skew["bound_s"] > TOLERATED_S:
            direction = "ahead of" if difference > 0 else "behind"
            message = (
                f"its clock is {abs(difference):.1f} s {direction} the other ranks' "
                f"(±{skew['bound_s']:.3f} s)"
            )
            result.append(Finding("clock-skew", message, (rank,)))
    return tuple(result)
