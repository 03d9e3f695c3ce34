"""Steps that all ranks take together: a failure on one rank is raised on all of them.

A rank that raised on its own would leave the others waiting, so every step ends in an exchange,
even if it failed. During long steps all ranks exchange values at least once a second: so a slow
rank is not mistaken for a lost one, and a lost rank is missed after the ranks' own time-out.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, TypeVar

from .rank_names import name_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .ranks import Ranks

T = TypeVar("T")

# Between two exchanges of ranks that work or wait.
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0


class RankFailed(OSError):
    """An action failed on some ranks; raised on all. errno and filename are the first rank's."""

    def __init__(
        self, ranks: Sequence[int], number: int, text: str, filename: str | None = None
    ) -> None:
        super().__init__(number, text, filename)
        self.ranks = tuple(ranks)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.ranks, self.errno, self.strerror, self.filename)

    def __str__(self) -> str:
        who = name_ranks(self.ranks) if self.ranks else "some rank"
        path = f": {self.filename}" if self.filename else ""
        return f"{who}: {self.strerror}{path}"


def barrier(name: str, ranks: Ranks) -> None:
    """Returns when all ranks have reached it.

    If a rank is missing, the error has the name of the barrier.
    """
    ranks.exchange(name, None)


def broadcast(name: str, ranks: Ranks, choose: Callable[[], Any]) -> Any:
    """Rank 0's result of `choose`, on every rank: two ranks that look at a file system may see
    different things.

    The result must be a JSON value. Raises RankFailed on every rank if rank 0 failed.
    """
    answer = _attempt(choose) if ranks.rank == 0 else None
    answers = ranks.exchange(f"broadcast {name}", answer)
    return _unwrap(answers[:1])[0]


def run_on_all(name: str, ranks: Ranks, action: Callable[[], Any]) -> list[Any]:
    """Every rank's own result of `action`, in rank order.

    Raises RankFailed on every rank if one failed.
    """
    return _unwrap(ranks.exchange(f"run {name}", _attempt(action)))


def _attempt(action: Callable[[], Any]) -> dict[str, Any]:
    try:
        return {"value": action(), "error": None}
    except OSError as error:
        path = None if error.filename is None else str(error.filename)
        return {"value": None, "error": [error.errno or 0, error.strerror or str(error), path]}
    except Exception as error:  # whatever it is, the other ranks wait for an answer
        return {"value": None, "error": [0, f"{type(error).__name__}: {error}", None]}


def _unwrap(answers: Sequence[dict[str, Any]]) -> list[Any]:
    failed = [rank for rank, answer in enumerate(answers) if answer["error"] is not None]
    if failed:
        raise RankFailed(failed, *answers[failed[0]]["error"])
    return [answer["value"] for answer in answers]


# Long steps


def run_with_heartbeat(name: str, ranks: Ranks, action: Callable[[], T]) -> Future[T]:
    """Runs this rank's action; returns when the actions of all ranks are over.

    The future holds the result or the error of this rank's action. Raises only errors of the
    exchanges.
    """
    return run_with_beats(action, lambda future: all(ranks.exchange(name, future.done())))


def run_with_beats(
    action: Callable[[], T],
    beat: Callable[[Future[T]], bool],
    stop: Callable[[], None] = lambda: None,
) -> Future[T]:
    """Runs the action in a thread and calls `beat` until it returns True.

    beat: exchanges the progress of the ranks; True when all of them are over. stop: called when a
    beat fails; makes the action end soon.
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
