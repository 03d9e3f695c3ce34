"""Every way in which saving, loading or reading a checkpoint fails on purpose."""

from __future__ import annotations

import errno
from typing import Any

from ..comm.collective import RankFailed
from ..comm.store import RanksMissing
from .items import Names

MAX_NAMES_IN_TEXT = 3
# What to do about an error of the file system.
ADVICE = {
    errno.ENOSPC: "the disk is full: free some space, keep fewer checkpoints (`prune`), "
    "or save elsewhere",
    errno.EDQUOT: "the quota of this user or group is used up: free some space, "
    "keep fewer checkpoints (`prune`), or ask for more",
    errno.EROFS: "the file system is mounted read-only, as some become after an error: "
    "see the kernel's messages",
    errno.ESTALE: "the file server no longer knows the folder: "
    "is it exported and mounted as before?",
}


class CheckpointWarning(UserWarning):
    """Something is wrong with checkpoints that does not stop the training: a damaged file, healed or
    not, or a checkpoint that could not be removed or copied.
    """


class CheckpointError(Exception):
    """A checkpoint cannot be saved or read; the text names the file or the rank."""


class DamagedFile(CheckpointError):
    """A file of a checkpoint is not what was committed.

    Args:
        path: The file's path, or its URL.
        problem: What is wrong, in words.
        tensors: The names of the values in the file, if known.
    """

    def __init__(self, path: object, problem: str, tensors: Names = ()) -> None:
        super().__init__(f"{path} is damaged: {problem}{_name_tensors(tensors)}")
        self.path = str(path)
        self.problem = problem
        self.tensors = tuple(tensors)

    def __reduce__(self) -> tuple[Any, ...]:
        # So that it can be pickled: by default an exception is rebuilt from its text alone.
        return type(self), (self.path, self.problem, self.tensors)


class NoCheckpoint(CheckpointError):
    """The step, or any step, was never committed under this root."""


class Vanished(CheckpointError):
    """The checkpoint was overwritten or pruned while it was read."""


class NotCommitted(CheckpointError):
    """The new checkpoint does not exist.

    `ranks` are those that failed; `errno` is that of the first of them, or 0.

    Args:
        step: The number of the step.
        failure: The failure of the ranks.
        is_certain: False if rank 0 fell silent, or the ranks' store was lost, while rank 0 published:
            the checkpoint may then exist; `list_steps` shows it.
    """

    def __init__(self, step: int, failure: RankFailed, is_certain: bool = True) -> None:
        doubt = "" if is_certain else ", as far as this rank can know"
        advice = ADVICE.get(failure.errno or 0)
        hint = f" ({advice})" if advice else ""
        super().__init__(f"step {step} was not committed{doubt}: {failure}{hint}")
        self.step = step
        self.failure = failure
        self.is_certain = is_certain
        self.ranks = failure.ranks
        self.errno = failure.errno or 0
        self.problem = str(failure.strerror)
        if failure.filename:
            self.problem += f": {failure.filename}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.step, self.failure, self.is_certain)


def as_rank_failed(error: Exception) -> RankFailed:
    """Missing ranks, or a lost store, as a failure of ranks."""
    if isinstance(error, RankFailed):
        return error
    if isinstance(error, RanksMissing):
        return RankFailed(error.ranks, errno.ETIMEDOUT, f"silent at {error.name}")
    # Rank 0 hosts the store.
    return RankFailed((0,), errno.ECONNRESET, str(error))


def _name_tensors(tensors: Names) -> str:
    if not tensors:
        return ""
    names = ", ".join(tensors[:MAX_NAMES_IN_TEXT])
    more = len(tensors) - MAX_NAMES_IN_TEXT
    if more > 0:
        names += f" and {more} more"
    return f" (it holds {names})"
