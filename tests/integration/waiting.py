"""Waiting for what other processes do. Only a test that fails waits to the end."""

from __future__ import annotations

import time
from collections.abc import Callable

# Far beyond what a busy machine needs: no test is timed.
PATIENCE_S = 300.0


def eventually(
    holds: Callable[[], bool],
    *,
    explain: Callable[[], str] = lambda: "it did not come true in time",
    every_s: float = 0.02,
) -> None:
    """Wait until something is so, or fail with an explanation of what is so instead."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, explain()
        time.sleep(every_s)
