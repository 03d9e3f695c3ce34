"""Ends a rank that passes its deadline or gets a signal, even while its main thread is stuck in a
collective.

Owns deadlines and signals. A signal handler of Python runs between two lines of Python, so it would
never run in a rank that waits inside Gloo or NCCL: signals are blocked in every other thread and
received by the watchdog's.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

# From our launcher: a rank failed, so write where you are and end. The others come from a scheduler
# or a person.
PEER_LOST = signal.SIGUSR1
SIGNALS = (signal.SIGTERM, signal.SIGINT, PEER_LOST)
TICK_S = 0.25
# How often the watchdog reads from the store whether another rank left the phase: rarely, since it
# takes time from a core that is being measured.
ASK_S = 1.0
# How long a rank stays in a phase that another rank left with an error.
PATIENCE_S = 2.0
# A thread that never releases the GIL keeps the watchdog from running; faulthandler's own thread
# needs no GIL.
BACKSTOP_S = 4.0

PASSED, OVER, SIGNALED, ABANDONED = "deadline-passed", "time-over", "interrupted", "rank-stuck"


def block_signals() -> None:
    """Call it before any other thread starts: threads inherit blocked signals."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def set_backstop(after_s: float) -> None:
    """Whatever happens, the process ends after these seconds, with its stacks on stderr."""
    # The descriptor: sys.stderr may be closed, or replaced by an object without one.
    faulthandler.dump_traceback_later(after_s, exit=True, file=2)


class Watchdog:
    """`end(reason, cause)` is called once, in the watchdog's thread, and must not return.
    `is_abandoned()`: whether a rank left the phase that this one is in."""

    def __init__(
        self,
        end: Callable[[str, str], None],
        ends_at: float,
        is_abandoned: Callable[[], bool] = lambda: False,
    ) -> None:
        self._end = end
        self._ends_at = ends_at
        self._is_abandoned = is_abandoned
        # What must end, when, and the finding if it does not.
        self._limit = ("the whole run", ends_at, OVER)
        self._leave_at = 0.0
        self._threads = [
            threading.Thread(target=self._watch, name="watchdog", daemon=True),
            threading.Thread(target=self._ask, name="asking", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def expect(self, name: str, within_s: float) -> None:
        """Sets the next deadline; it is never after the end of the whole run."""
        deadline = time.monotonic() + within_s
        if deadline < self._ends_at:
            self._limit = (f"{name} within its {within_s:g} s", deadline, PASSED)
        else:
            self._limit = (f"{name} before the time of the whole run", self._ends_at, OVER)
        set_backstop(max(self.remaining_s(), 0) + BACKSTOP_S)

    def remaining_s(self) -> float:
        return self._limit[1] - time.monotonic()

    def _watch(self) -> None:
        try:
            while True:
                received = signal.sigtimedwait(SIGNALS, TICK_S)
                # Seen on a busy machine: an answer without a signal, number 0.
                number = received.si_signo if received is not None else 0
                if number == PEER_LOST:
                    self._end("another rank ended", ABANDONED)
                if number:
                    self._end(f"ended by {signal.Signals(number).name}", SIGNALED)
                now = time.monotonic()
                name, deadline, cause = self._limit
                if now >= deadline:
                    self._end(f"did not end {name}", cause)
                if self._leave_at and now >= self._leave_at:
                    self._end("another rank left the phase", ABANDONED)
        except Exception:
            traceback.print_exc()
        finally:
            # A rank without its watchdog would keep no deadline: it ends with it.
            end_rank(False)

    def _ask(self) -> None:
        """In a separate thread: a store whose host is stopped does not respond, and deadlines must
        hold then too."""
        while True:
            time.sleep(ASK_S)
            if not self._is_abandoned():
                self._leave_at = 0.0
            elif not self._leave_at:
                self._leave_at = time.monotonic() + PATIENCE_S


def end_rank(success: bool) -> NoReturn:
    """Ends this process at once, without what Python and torch do at exit."""
    os._exit(0 if success else 1)
