"""Steps that all ranks take together: one decides or makes, all learn of it, and a failure on one is raised on all.

A rank that raised alone would leave the others waiting; so every step ends in an exchange, also where it failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..fs.files import fsync_directory, retry_stale
from ..fs.visibility import wait_until_visible

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from .ranks import Ranks

DEADLINE_S = 30.0


class RankFailed(OSError):
    """What some ranks could not do, raised on all of them; errno and filename are those of the first of these ranks."""

    def __init__(
        self, ranks: Sequence[int], number: int, text: str, filename: str | None = None
    ) -> None:
        super().__init__(number, text, filename)
        self.ranks = tuple(ranks)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.ranks, self.errno, self.strerror, self.filename)

    def __str__(self) -> str:
        place = f": {self.filename}" if self.filename else ""
        who = (
            f"rank{'s' if len(self.ranks) > 1 else ''} {', '.join(map(str, self.ranks))}"
            if self.ranks
            else "some rank"
        )
        return f"{who}: {self.strerror}{place}"


def barrier(name: str, ranks: Ranks) -> None:
    """All ranks are here. The name tells two barriers apart when a rank is missing at one of them."""
    ranks.exchange(name, None)


def decide(name: str, ranks: Ranks, choose: Callable[[], Any]) -> Any:
    """What rank 0 chose, on every rank: two ranks that look for themselves may see different things.

    The choice must be what JSON can hold. Raises RankFailed on every rank when rank 0 could not choose.
    """
    said = _attempt(choose) if ranks.rank == 0 else None
    return _agree(ranks.exchange(f"decide {name}", said)[:1])[0]


def each(name: str, ranks: Ranks, action: Callable[[], Any]) -> list[Any]:
    """Every rank's own result, in rank order. Raises RankFailed on every rank when one failed."""
    return _agree(ranks.exchange(f"each {name}", _attempt(action)))


def exists(path: Path, ranks: Ranks) -> bool:
    """Whether the path exists, as rank 0 sees it: the same answer on all ranks, so that all go the same way."""
    return bool(decide(f"whether {path.name} exists", ranks, lambda: retry_stale(path.exists)))


def make_directory(path: Path, ranks: Ranks, deadline_s: float = DEADLINE_S) -> float:
    """Rank 0 makes the folder and its parents; returns, on every rank, when all see it.

    The result is the seconds that the slowest rank waited. Raises RankFailed on every rank when rank 0 could not make
    the folder, or when a rank did not see it before the deadline.
    """
    decide(f"make {path.name}", ranks, lambda: _make(path))
    waited: list[float] = each(
        f"see {path.name}", ranks, lambda: wait_until_visible(path, deadline_s)
    )
    return max(waited)


def _make(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    fsync_directory(path.parent)


def _attempt(action: Callable[[], Any]) -> dict[str, Any]:
    try:
        return {"value": action(), "error": None}
    except OSError as error:
        path = None if error.filename is None else str(error.filename)
        return {"value": None, "error": [error.errno or 0, error.strerror or str(error), path]}
    except Exception as error:  # whatever it is, the others wait for word of it
        return {"value": None, "error": [0, f"{type(error).__name__}: {error}", None]}


def _agree(answers: Sequence[dict[str, Any]]) -> list[Any]:
    failed = [rank for rank, answer in enumerate(answers) if answer["error"] is not None]
    if failed:
        raise RankFailed(failed, *answers[failed[0]]["error"])
    return [answer["value"] for answer in answers]
