"""A watchdog that fails, and the backstop behind it."""

from __future__ import annotations

import subprocess
import sys

import pytest

# What ends a rank raises, as when a folder is gone or no thread can be started.
BROKEN_END = """
import sys, time
from provision_runtime.smoke import watchdog

def end(reason, cause):
    raise {error}("cannot report")

watchdog.block_signals()
watchdog.Watchdog(end, ends_at=0.0).start()
time.sleep(60)
"""
# With the standard error closed in Python, or replaced.
BACKSTOP = """
import sys, time
from provision_runtime.smoke import watchdog

{change}
watchdog.set_backstop(0.1)
time.sleep(60)
"""
# A test that would hang is red.
PATIENCE_S = 30


@pytest.mark.parametrize("error", ["OSError", "RuntimeError", "ValueError"])
def test_a_watchdog_that_fails_ends_its_rank_and_says_why(error: str) -> None:
    program = BROKEN_END.format(error=error)
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert ended.returncode == 1
    assert f"{error}: cannot report" in ended.stderr


@pytest.mark.parametrize("change", ["sys.stderr.close()", "sys.stderr = None"])
def test_the_backstop_needs_no_standard_error_of_python(change: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", BACKSTOP.format(change=change)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ended.returncode == 1
    assert "Timeout" in ended.stderr
