"""Long work on some ranks while the others wait.

All ranks exchange values at least once a second meanwhile: so a rank that works for long is not
taken for one that is gone, and one that is gone is missed after the ranks' own time-out.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from .ranks import Ranks

T = TypeVar("T")

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0


def run_with_heartbeat(name: str, ranks: Ranks, action: Callable[[], T]) -> Future[T]:
    """Runs this rank's action; returns when those of all ranks are over.

    The future holds the result or the error of this rank's action. Raises only what the exchanges
    raise.
    """
    return run_with_beats(action, lambda future: all(ranks.exchange(name, future.done())))


def run_with_beats(
    action: Callable[[], T],
    beat: Callable[[Future[T]], bool],
    stop: Callable[[], None] = lambda: None,
) -> Future[T]:
    """Runs the action in a thread and calls `beat` until it returns True.

    beat: the ranks exchange their progress; True when all of them are over.
    stop: called when a beat fails; makes the action end soon.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="provision-checkpoint") as pool:
        future = pool.submit(action)
        pause_s = FIRST_PAUSE_S
        try:
            while True:
                wait([future], timeout=pause_s)
                if beat(future):
                    return future
                pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
        except BaseException:
            stop()
            raise
