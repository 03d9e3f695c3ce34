"""Faults that a user may inject to see the smoke test fail; those of a single phase are in that phase."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .session import Session

# How long a fault waits for the others to come into the phase in which it is to show.
TOGETHER_S = 5.0
PAUSE_S = 0.01


def strike(session: Session, phase: str) -> None:
    """At the beginning of a phase die, as a rank does that ran out of memory; stop, as under a debugger; raise, as torch does; or hang,
    as before a dead disk."""
    options, rank = session.options, session.place.rank
    struck = [kind for kind in ("die", "stop", "raise", "hang") if options.fault(kind, rank, phase)]
    if struck:
        _await_others(session, phase)
    if "die" in struck:
        os.kill(os.getpid(), signal.SIGKILL)
    if "stop" in struck:
        os.kill(os.getpid(), signal.SIGSTOP)
    if "raise" in struck:
        raise RuntimeError("rehearsed: an error as when memory is full")
    while "hang" in struck:
        time.sleep(60)


def _await_others(session: Session, phase: str) -> None:
    """The process of rank 0 hosts the store: gone too early, it would keep the others in the phase before."""
    end = time.monotonic() + TOGETHER_S
    for rank in range(session.place.world_size):
        while session.mailbox is not None and time.monotonic() < end:
            seen = session.mailbox.peek(f"at/{rank}")
            if seen is not None and seen["phase"] == phase:
                break
            time.sleep(PAUSE_S)
