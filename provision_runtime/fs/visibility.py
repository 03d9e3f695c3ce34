"""Paths that one rank makes and all ranks see, also on shared file systems.

The clock is an argument, so that tests need not wait.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ..comm.collective import broadcast, run_on_all
from .files import TRANSIENT, fsync_directory, retry_stale

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ..comm.ranks import Ranks

POLL_S = 0.02
TIMEOUT_S = 30.0


class NotVisible(TimeoutError):
    """A path that another rank made did not become visible to this rank in time."""


def wait_until_visible(
    path: Path,
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> float:
    """Seconds until this rank saw the path. Raises NotVisible after the time-out."""
    started = clock()
    while not is_visible(path):
        waited_s = clock() - started
        if waited_s >= timeout_s:
            raise NotVisible(
                f"{path} did not become visible within {timeout_s:g} s: is its folder shared?"
            )
        sleep(POLL_S)
    return clock() - started


def is_visible(path: Path) -> bool:
    """Whether the path exists now: lists the parent, so that an NFS client drops a cached "no such
    file".
    """
    try:
        path.stat()
        return True
    except OSError as error:
        if error.errno not in TRANSIENT:
            raise
    try:
        return any(entry.name == path.name for entry in path.parent.iterdir())
    except OSError as error:
        if error.errno not in TRANSIENT:
            raise
        return False


def exists(path: Path, ranks: Ranks) -> bool:
    """Whether rank 0 sees the path: the same answer on all ranks, so all take the same branch."""
    return bool(broadcast(f"whether {path.name} exists", ranks, lambda: retry_stale(path.exists)))


def make_directory(path: Path, ranks: Ranks, timeout_s: float = TIMEOUT_S) -> float:
    """Rank 0 makes the folder and its parents; every rank returns when all of them see it.

    Returns the seconds that the slowest rank waited. Raises RankFailed on every rank if rank 0
    could not make the folder, or if a rank did not see it before the time-out.
    """
    broadcast(f"make {path.name}", ranks, lambda: _make_durable(path))
    waited_s: list[float] = run_on_all(
        f"see {path.name}", ranks, lambda: wait_until_visible(path, timeout_s)
    )
    return max(waited_s)


def _make_durable(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    fsync_directory(path.parent)
