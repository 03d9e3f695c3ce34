"""Waiting for what other processes do. Only a test that fails waits to the end."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

# Far beyond what a busy machine needs: no test is timed.
PATIENCE_S = 300.0


def eventually(
    holds: Callable[[], bool],
    *,
    explain: Callable[[], str] = lambda: "it did not come true in time",
    every_s: float = 0.02,
    daemons: Sequence[subprocess.Popen[Any]] = (),
) -> None:
    """Wait until something is so, or fail with an explanation of what is so instead.

    daemons: without which it will never be so: the first that ends is a failure at once.
    """
    end = time.monotonic() + PATIENCE_S
    while not holds():
        for daemon in daemons:
            status = daemon.poll()
            assert status is None, f"{daemon.args!r} ended with status {status}:\n{explain()}"
        assert time.monotonic() < end, explain()
        time.sleep(every_s)
