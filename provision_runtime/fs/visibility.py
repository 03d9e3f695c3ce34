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
    """Waits until this rank sees a path, past an NFS client's cached "no such file".

    Args:
        path: The file or folder.
        timeout_s: Seconds to wait.
        clock: Returns seconds.
        sleep: Called with seconds.

    Returns:
        The seconds that it waited.

    Raises:
        NotVisible: After the time-out.
        OSError: If the file system fails in another way.
    """
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
    """Looks for a path, and lists its parent, so that an NFS client drops a cached "no such file".

    Args:
        path: The file or folder.

    Returns:
        Whether it exists now.

    Raises:
        OSError: If the file system fails.
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
    """Looks for a path on rank 0, for all ranks, so that all take the same branch.

    Args:
        path: The file or folder.
        ranks: This rank.

    Returns:
        Whether rank 0 sees it.

    Raises:
        RankFailed: On every rank, if the file system fails on rank 0.
        RanksMissing: If a rank does not come in time.
        StoreLost: If the process that hosts the store is gone.
    """
    return bool(broadcast(f"whether {path.name} exists", ranks, lambda: retry_stale(path.exists)))


def make_directory(path: Path, ranks: Ranks, timeout_s: float = TIMEOUT_S) -> float:
    """Rank 0 makes a folder and its parents; every rank returns when all of them see it.

    Args:
        path: The folder. It may exist.
        ranks: This rank.
        timeout_s: Seconds to wait until this rank sees it.

    Returns:
        The seconds that the slowest rank waited.

    Raises:
        RankFailed: On every rank, if rank 0 could not make the folder, or a rank did not see it
            before the time-out.
        RanksMissing: If a rank does not come in time.
        StoreLost: If the process that hosts the store is gone.
    """
    broadcast(f"make {path.name}", ranks, lambda: _make_durable(path))
    waited_s: list[float] = run_on_all(
        f"see {path.name}", ranks, lambda: wait_until_visible(path, timeout_s)
    )
    return max(waited_s)


def _make_durable(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    fsync_directory(path.parent)
