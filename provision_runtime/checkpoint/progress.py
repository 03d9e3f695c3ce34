"""What a save comes to: how far it is, what it committed, or which ranks failed it."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..comm import collective
from ..comm.store import GroupBroken, RanksMissing
from . import manifest, space

if TYPE_CHECKING:
    from .items import Place


class NotCommitted(manifest.CheckpointError):
    """The new checkpoint is not there; `ranks` are those that failed (none where that is not known), `errno` what the first of them was
    told (0: nothing).

    is_certain: False where rank 0 fell silent while it published, or the store of the ranks was lost then: the checkpoint may be there,
    and `list_steps` tells.
    """

    def __init__(self, step: int, failure: collective.RankFailed, is_certain: bool = True) -> None:
        advice = space.ADVICE.get(failure.errno or 0)
        doubt = "" if is_certain else ", as far as this rank can know"
        super().__init__(
            f"step {step} was not committed{doubt}: {failure}{f' ({advice})' if advice else ''}"
        )
        self.step = step
        self.failure = failure
        self.is_certain = is_certain
        self.ranks = failure.ranks
        self.errno = failure.errno or 0
        self.problem = (
            f"{failure.strerror}: {failure.filename}" if failure.filename else str(failure.strerror)
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.step, self.failure, self.is_certain)


@dataclass(frozen=True)
class Doing:
    """How far a save is, over all ranks, in bytes of tensors; rate: bytes per second so far. What the progress callback gets."""

    total: int
    written: int
    linked: int
    seconds: float

    @property
    def rate(self) -> float:
        return (self.written + self.linked) / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Committed:
    """digests: of this rank's pieces, as the manifest has them."""

    folder: str
    done: Doing
    digests: dict[Place, str]
    write_s: float
    commit_s: float


def failure_of(error: Exception) -> collective.RankFailed:
    """Ranks that are missed, and a store that is lost, as what some ranks could not do."""
    if isinstance(error, collective.RankFailed):
        return error
    if isinstance(error, RanksMissing):
        return collective.RankFailed(error.ranks, errno.ETIMEDOUT, f"silent at {error.name}")
    return collective.RankFailed(
        () if isinstance(error, GroupBroken) else (0,), errno.ECONNRESET, str(error)
    )
