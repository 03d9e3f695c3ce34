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

__all__ = ["RankFailed", "barrier", "broadcast", "run_on_all"]

T = TypeVar("T")

# Between two exchanges of ranks that work or wait.
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0


class RankFailed(OSError):
    """An action failed on some ranks; raised on all.

    `errno`, `strerror` and `filename` are those of the first of them; errno is 0 if its error was no
    OSError.

    Args:
        ranks: The ranks that failed.
        number: The errno.
        text: What went wrong.
        filename: The file of the error.
    """

    def __init__(
        self, ranks: Sequence[int], number: int, text: str, filename: str | None = None
    ) -> None:
        super().__init__(number, text, filename)
        self.ranks = tuple(ranks)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.ranks, self.errno, self.strerror, self.filename)

    def __str__(self) -> str:
        path = f": {self.filename}" if self.filename else ""
        return f"{name_ranks(self.ranks)}: {self.strerror}{path}"


def barrier(name: str, ranks: Ranks) -> None:
    """Returns when all ranks have reached it.

    Args:
        name: Names the barrier in errors. Ranks at different barriers do not pass.
        ranks: This rank.

    Raises:
        RanksMissing: If a rank does not come in time.
        StoreLost: If the process that hosts the store is gone.
    """
    ranks.exchange(name, None)


def broadcast(name: str, ranks: Ranks, choose: Callable[[], Any]) -> Any:
    """Runs an action on rank 0, and gives its result to every rank: two ranks that look at a file
    system may see different things.

    Args:
        name: Names the step in errors.
        ranks: This rank.
        choose: The action. Its result must be a JSON value.

    Returns:
        Rank 0's result.

    Raises:
        RankFailed: On every rank, if the action failed on rank 0.
        RanksMissing: If a rank does not come in time.
        StoreLost: If the process that hosts the store is gone.
    """
    outcome = _attempt(choose) if ranks.rank == 0 else None
    outcomes = ranks.exchange(f"broadcast {name}", outcome)
    return _unwrap(outcomes[:1])[0]


def run_on_all(name: str, ranks: Ranks, action: Callable[[], Any]) -> list[Any]:
    """Runs an action on every rank, and gives all results to all ranks.

    Args:
        name: Names the step in errors.
        ranks: This rank.
        action: The action. Its result must be a JSON value.

    Returns:
        Every rank's result, in rank order.

    Raises:
        RankFailed: On every rank, if the action failed on one.
        RanksMissing: If a rank does not come in time.
        StoreLost: If the process that hosts the store is gone.
    """
    return _unwrap(ranks.exchange(f"run {name}", _attempt(action)))


def _attempt(action: Callable[[], Any]) -> dict[str, Any]:
    try:
        return {"value": action(), "error": None}
    except Exception as error:  # whatever it is, the other ranks wait for an answer
        return {"value": None, "error": facts_of(error)}


def facts_of(error: Exception) -> list[Any]:
    """The arguments of RankFailed after the ranks."""
    if not isinstance(error, OSError):
        return [0, f"{type(error).__name__}: {error}", None]
    path = None if error.filename is None else str(error.filename)
    return [error.errno or 0, error.strerror or str(error), path]


def _unwrap(outcomes: Sequence[dict[str, Any]]) -> list[Any]:
    failed = [rank for rank, outcome in enumerate(outcomes) if outcome["error"] is not None]
    if failed:
        raise RankFailed(failed, *outcomes[failed[0]]["error"])
    return [outcome["value"] for outcome in outcomes]


# Long steps of `checkpoint`: internal


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
