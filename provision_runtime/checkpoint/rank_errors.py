"""Steps after which all ranks raise if one of them failed: what the others raise has the class of
the failure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, NamedTuple, TypeVar

from ..comm.collective import RankFailed, run_with_beats
from ..comm.store import RanksMissing, StoreLost
from .errors import CheckpointError, DamagedFile, Vanished

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from ..comm.ranks import Ranks

T = TypeVar("T")

# Kinds of failures of a rank; the first in this order is what all ranks raise.
ERROR, STORE, VANISHED, DAMAGE = KINDS = ("error", "store", "vanished", "damage")


class _Failure(NamedTuple):
    """arguments: of the exception that the other ranks raise."""

    kind: str
    arguments: Sequence[Any]


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
    failures = {
        rank: _Failure(*fields)
        for rank, fields in enumerate(ranks.exchange(name, error and _failure(error)))
        if fields is not None
    }
    for kind in KINDS:
        failed = [rank for rank, failure in failures.items() if failure.kind == kind]
        # If several ranks have damage, all raise the first one's. Other failures are raised by their own rank.
        if error is not None and ranks.rank in (failed[:1] if kind == DAMAGE else failed):
            raise error
        if failed:
            raise _error_of(failed, failures[failed[0]])
    return result


def _failure(error: Exception) -> _Failure:
    if isinstance(error, DamagedFile):
        return _Failure(DAMAGE, [error.path, error.problem, error.tensors])
    if isinstance(error, Vanished):
        return _Failure(VANISHED, [str(error)])
    if isinstance(error, OSError):
        path = None if error.filename is None else str(error.filename)
        return _Failure(STORE, [error.errno or 0, error.strerror or str(error), path])
    return _Failure(ERROR, [_describe(error)])


def _error_of(failed: Sequence[int], failure: _Failure) -> Exception:
    """The error of other ranks."""
    if failure.kind == DAMAGE:
        path, problem, tensors = failure.arguments
        return DamagedFile(path, problem, tuple(tensors))
    if failure.kind == STORE:
        return RankFailed(failed, *failure.arguments)
    text = f"rank {failed[0]}: {failure.arguments[0]}"
    return Vanished(text) if failure.kind == VANISHED else CheckpointError(text)


def _describe(error: Exception) -> str:
    return str(error) if isinstance(error, CheckpointError) else f"{type(error).__name__}: {error}"
