"""Every rank writes a file, every other rank reads it: how long until its content is there, and does it ever come?"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .... import fs
from ....fs import TRANSIENT
from ... import folder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .work import Work

# NFS clients keep "no such file" for up to a minute (acdirmax), though listing the folder usually ends it.
DEADLINE_S = 30.0
DEADLINE_QUICK_S = 10.0
POLL_S = 0.01
# One slow moment is a busy machine; what is called slow must be slow every time.
TRIES = 2
# Where files do not come, the folder itself may be gone: no need to wait for them then.
LOOK_AGAIN_S = 0.5


def step(work: Work) -> list[int]:
    """The ranks that can go on together: they see each other's files."""
    for turn in range(TRIES):
        seen_by = _turn(work, turn)
        if (
            max((seconds for seen in seen_by for seconds in seen.values()), default=0.0)
            <= folder.SLOW_S
        ):
            break
    together = crew([[int(rank) for rank in seen] for seen in seen_by])
    work.able = work.able and work.rank in together
    return together


def _turn(work: Work, turn: int) -> list[dict[str, float]]:
    """What each rank saw, and after how many seconds; the shorter times of all turns are kept."""
    # A client that was told "no such file" may keep believing it: so every rank asks before the files are there.
    work.attempt(
        "looking",
        lambda: [
            _holds(_path(work, rank, turn), b"") for rank in range(work.session.place.world_size)
        ],
    )
    work.meet("before writing")
    work.attempt("writing a file", lambda: _write(work, turn))
    writers = [rank for rank, wrote in enumerate(work.meet("written", work.able)) if wrote]
    seen = work.attempt("reading files", lambda: _await(work, writers, turn)) or {}
    work.look_again()
    before = work.data.get("seen_s", {})
    work.data["seen_s"] = {
        str(rank): round(min(seconds, before.get(str(rank), seconds)), 4)
        for rank, seconds in seen.items()
    }
    return work.meet("seen", work.data["seen_s"])


def crew(seen_by: Sequence[Sequence[int]]) -> list[int]:
    """The largest group of ranks that all see the same ranks, themselves among them; with rank 0, where two are as large."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank, seen in enumerate(seen_by):
        if rank in seen:
            groups.setdefault(tuple(sorted(seen)), []).append(rank)
    return max(groups.values(), key=len, default=[])


def _write(work: Work, turn: int) -> None:
    folder.rehearse(work.session, "disk-full")
    fs.write_synced(_path(work, work.rank, turn), _content(work.rank))


def _await(work: Work, writers: Sequence[int], turn: int) -> dict[int, float]:
    """Seconds until the whole file of each rank could be read; ranks whose file did not come are left out."""
    started = time.monotonic()
    limit_s = DEADLINE_QUICK_S if work.session.options.quick else DEADLINE_S
    limit_s = min(limit_s, work.session.remaining_s() / 2)
    seen: dict[int, float] = {}
    while True:
        for rank in writers:
            if rank not in seen and _holds(_path(work, rank, turn), _content(rank)):
                seen[rank] = time.monotonic() - started
        waited = time.monotonic() - started
        if (
            len(seen) == len(writers)
            or waited > limit_s
            or (waited > LOOK_AGAIN_S and work.moved())
        ):
            return dict(sorted(seen.items()))
        time.sleep(POLL_S)


def _holds(path: Path, content: bytes) -> bool:
    try:
        return fs.is_visible(path) and fs.read_bytes(path) == content
    except OSError as error:
        if error.errno not in TRANSIENT:
            raise
        return False


def _path(work: Work, rank: int, turn: int) -> Path:
    return work.root / f"rank{rank:05d}.{turn}"


def _content(rank: int) -> bytes:
    return f"written by rank {rank}\n".encode() * 64
