"""Long work on some ranks while the others wait: all meet at least once a second, so that a rank which works on is not taken for one
that is gone, however long it takes, and one that is gone is missed after the ranks' own time-out."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from .ranks import Ranks

T = TypeVar("T")

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0


def until_all_are_done(name: str, ranks: Ranks, action: Callable[[], T]) -> Future[T]:
    """This rank's action, over when it returns, on all ranks; what became of it is the future's. Raises only what the meetings raise."""
    return meeting_meanwhile(action, lambda job: all(ranks.exchange(name, job.done())))


def meeting_meanwhile(
    action: Callable[[], T],
    meet: Callable[[Future[T]], bool],
    stop: Callable[[], None] = lambda: None,
) -> Future[T]:
    """meet: the ranks tell each other how far they are; whether all are done. stop: has the action end soon, where a meeting fails."""
    with ThreadPoolExecutor(1, thread_name_prefix="provision-checkpoint") as pool:
        job = pool.submit(action)
        pause = FIRST_PAUSE_S
        try:
            while True:
                wait([job], timeout=pause)
                if meet(job):
                    return job
                pause = min(pause * 2, LONGEST_PAUSE_S)
        except BaseException:
            stop()
            raise
