"""How long a small durable write takes: file, fsync, and fsync of its folder, as every checkpoint needs them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .... import fs
from ... import folder

if TYPE_CHECKING:
    from pathlib import Path

    from .work import Work

SIZE = 64 << 10
# One slow write is a busy moment; what is called slow must be slow every time.
TRIES = 2


def step(work: Work) -> None:
    work.data["sync_s"] = work.attempt("writing a file durably", lambda: _best(work))


def _best(work: Work) -> float:
    """The shortest of some tries; the first that is not slow ends them."""
    folder.rehearse(work.session, "unmounted")
    taken: list[float] = []
    while len(taken) < TRIES and min(taken, default=folder.SLOW_S + 1) > folder.SLOW_S:
        taken.append(_timed(work, work.root / f"synced{work.rank}-{len(taken)}"))
    return round(min(taken), 4)


def _timed(work: Work, path: Path) -> float:
    started = time.monotonic()
    folder.rehearse_delay(work.session)
    fs.write_synced(path, bytes(SIZE))
    fs.fsync_directory(path.parent)
    return time.monotonic() - started
