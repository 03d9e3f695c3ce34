"""Waiting until a path that another rank made can be seen here. The clock is an argument, so that tests need not wait."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .files import TRANSIENT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

POLL_S = 0.02


class NotVisible(TimeoutError):
    """A path that another rank made did not appear here in time."""


def wait_until_visible(
    path: Path,
    deadline_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> float:
    """Seconds until the path was seen here. Raises NotVisible after the deadline."""
    started = clock()
    while not is_visible(path):
        waited = clock() - started
        if waited >= deadline_s:
            raise NotVisible(
                f"{path} did not become visible here within {deadline_s:g} s: is its folder shared?"
            )
        sleep(POLL_S)
    return clock() - started


def is_visible(path: Path) -> bool:
    """Whether the path exists, asked afresh: listing the parent makes an NFS client drop a cached "no such file"."""
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
