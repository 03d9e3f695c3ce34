"""Ends a rank whose deadline passed or that was told to stop, even while its main thread sits in a collective.

Owns deadlines and signals. A signal handler of Python runs between two lines of Python, so it would never run in a rank
that waits inside Gloo or NCCL: the signals are blocked everywhere and taken by this thread.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

SIGNALS = (signal.SIGTERM, signal.SIGINT)
TICK_S = 0.25
# A thread that holds the GIL for good keeps this one from running; faulthandler's own thread needs no GIL.
BACKSTOP_S = 5.0


def block_signals() -> None:
    """Before any other thread starts: threads inherit what is blocked."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def ring_backstop(after_s: float) -> None:
    """Whatever happens, the process is gone after these seconds, its stacks on stderr."""
    faulthandler.dump_traceback_later(after_s, exit=True, file=sys.stderr)


class Watchdog:
    """`end(reason, late)` is called once in the watchdog's thread and must not return."""

    def __init__(self, end: Callable[[str, bool], None], ends_at: float) -> None:
        self._end = end
        self._ends_at = ends_at
        self._limit = ("the whole run", ends_at)
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def expect(self, what: str, within_s: float) -> None:
        """The next thing, and the seconds it may take; never beyond the end of the whole run."""
        own = time.monotonic() + within_s
        text = f"{what} within its {within_s:g} s"
        self._limit = (text, own) if own < self._ends_at else (f"{what} before the time of the whole run", self._ends_at)
        ring_backstop(max(self.remaining_s(), 0) + BACKSTOP_S)

    def remaining_s(self) -> float:
        return self._limit[1] - time.monotonic()

    def _watch(self) -> None:
        while True:
            received = signal.sigtimedwait(SIGNALS, TICK_S)
            if received is not None:
                self._end(f"ended by {signal.Signals(received.si_signo).name}", False)
            what, deadline = self._limit
            if time.monotonic() >= deadline:
                self._end(f"did not end {what}", True)
