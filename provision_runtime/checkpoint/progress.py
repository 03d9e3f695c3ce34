"""What is reported while a save or a load goes on, and the line that rank 0 prints of a long one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Callable

from ..dataclass import frozen

if TYPE_CHECKING:
    from ..comm.ranks import Ranks

# Seconds between two lines.
LINE_S = 10.0


@frozen
class LoadProgress:
    """How far a load is, on this rank.

    Attributes:
        total: Bytes to verify and to read; 0 before the manifest was read.
        done: Bytes of them that were.
        seconds: Since this rank began to verify.
    """

    total: int
    done: int
    seconds: float

    @property
    def rate(self) -> float:
        """Bytes per second so far: done / seconds."""
        return self.done / self.seconds if self.seconds else 0.0


@frozen
class SaveProgress(LoadProgress):
    """How far a save is, over all ranks.

    Attributes:
        total: Bytes of tensors that the checkpoint will have.
        done: Bytes that are written or linked.
        seconds: Since this rank began to write.
        written: Bytes of them that are written.
        linked: Bytes of them that are linked, because the parent has them.
    """

    written: int = 0
    linked: int = 0


SaveCallback = Callable[[SaveProgress], None]
LoadCallback = Callable[[LoadProgress], None]


def line_printer(what: str, ranks: Ranks) -> LoadCallback:
    """A callback that prints a line to standard error every LINE_S seconds, on rank 0."""
    printed = 0.0

    def print_line(progress: LoadProgress) -> None:
        nonlocal printed
        if ranks.rank == 0 and progress.seconds >= printed + LINE_S:
            printed = progress.seconds
            gigabytes = [count / 1e9 for count in (progress.done, progress.total, progress.rate)]
            line = "{}: {:.2f} of {:.2f} GB, {:.2f} GB/s, {:.0f} s"
            print(line.format(what, *gigabytes, printed), file=sys.stderr, flush=True)

    return print_line
