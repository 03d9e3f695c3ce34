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


# The kernel's call may return without a signal: an answer with the number 0.
NO_SIGNAL = """
import os, signal, time
from provision_runtime.smoke import watchdog

wait, answers = signal.sigtimedwait, [signal.struct_siginfo((0,) * 7)]
signal.sigtimedwait = lambda *arguments: answers.pop() if answers else wait(*arguments)

def end(reason, cause):
    print(reason, cause, len(answers), flush=True)
    os._exit(0)

watchdog.block_signals()
watchdog.Watchdog(end, ends_at=time.monotonic() + 20).start()
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)
"""


def test_an_answer_without_a_signal_ends_no_rank() -> None:
    command = [sys.executable, "-c", NO_SIGNAL]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.stdout == "ended by SIGTERM interrupted 0\n", ended.stderr
