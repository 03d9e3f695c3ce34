"""Steps after which all ranks raise if one of them failed: what the others raise has the class of
the failure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, TypeVar

from ..comm.collective import RankFailed, facts_of, run_with_beats
from ..comm.store import RanksMissing, StoreLost
from .errors import CheckpointError, DamagedFile, Vanished

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ..comm.ranks import Ranks

T = TypeVar("T")

# Kinds of failures; the first in this order counts.
ERROR, FILE_SYSTEM, VANISHED, DAMAGE = range(4)


def exchange_or_fail(
    name: str, ranks: Ranks, payload: Any, problem: Exception | None, consequence: str
) -> list[Any]:
    """Every rank's payload, unless one has a problem.

    Then it raises the problem on the rank that has it, and on the others CheckpointError, whose
    text begins with the consequence.
    """
    text = None if problem is None else _describe(problem)
    results = ranks.exchange(name, [payload, text])
    if problem is not None:
        raise problem
    for rank, (_, problem_text) in enumerate(results):
        if problem_text is not None:
            raise CheckpointError(f"{consequence}: rank {rank}: {problem_text}")
    return [rank_payload for rank_payload, _ in results]


def run_together(name: str, ranks: Ranks, action: Callable[[], T], report: Callable[[], None]) -> T:
    """This rank's result, once all ranks have theirs.

    A failure on one is raised on all; damage as the same damage. report: called at least once a
    second meanwhile; what it raises is a failure too.
    """
    error: Exception | None = None

    def beat(future: Future[T]) -> bool:
        nonlocal error
        is_over = future.done()
        try:
            if error is None:
                report()
        except Exception as failure:
            error = failure
        return all(ranks.exchange(f"{name}/busy", is_over))

    try:
        result = run_with_beats(action, beat).result()
    except (RanksMissing, StoreLost):
        raise
    except Exception as failure:  # whatever it is, the other ranks wait for the exchange
        error = failure
    reports = ranks.exchange(name, error and _failure(error))
    failed = sorted((report[0], rank) for rank, report in enumerate(reports) if report)
    if not failed:
        return result
    kind, first = failed[0]
    same = [rank for other, rank in failed if other == kind]
    # If several ranks have damage, all raise the first one's. Other failures are raised by their own rank.
    if error is not None and ranks.rank in (same[:1] if kind == DAMAGE else same):
        raise error
    arguments = reports[first][1]
    if kind == DAMAGE:
        raise DamagedFile(*arguments)
    if kind == FILE_SYSTEM:
        raise RankFailed(same, *arguments)
    raise (Vanished if kind == VANISHED else CheckpointError)(f"rank {first}: {arguments}")


def _failure(error: Exception) -> tuple[int, Any]:
    """Its kind, and the arguments of the exception on the other ranks."""
    if isinstance(error, DamagedFile):
        return DAMAGE, [error.path, error.problem, error.tensors]
    if isinstance(error, OSError):
        return FILE_SYSTEM, facts_of(error)
    return VANISHED if isinstance(error, Vanished) else ERROR, _describe(error)


def _describe(error: Exception) -> str:
    return str(error) if isinstance(error, CheckpointError) else f"{type(error).__name__}: {error}"
