"""torchrun's agent that does not end by itself: real processes stand for it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from provision_runtime.comm import processes
from provision_runtime.smoke import watchdog

TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_MAX_RESTARTS": "0"}
# What a rank does at its end, as the child of a process that then waits for ever.
RANK = "from provision_runtime.smoke import watchdog; watchdog.AGENT_GRACE_S = 0.1; watchdog.end_rank(False)"
AGENT = f"import subprocess, sys; print(subprocess.run([sys.executable, '-c', {RANK!r}]).returncode, flush=True); input()"

# Its rank lives until it is told to end itself.
BUSY_AGENT = """
import subprocess, sys
rank = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
print(flush=True)
input()
rank.communicate()
sys.exit(7)
"""
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


@contextmanager
def waiting(*command: str, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def end(child: subprocess.Popen[str]) -> None:
    """The program as it is started: with nothing but its own file."""
    command = [sys.executable, "-I", "-S", processes.__file__]
    command += [*processes.identity(child.pid), "0.1"]
    subprocess.run(command, check=True, capture_output=True)


def test_a_process_that_stays_is_ended() -> None:
    with waiting(sys.executable, "-c", "input()") as child:
        end(child)
        assert child.wait(PATIENCE_S) == -signal.SIGKILL


def test_one_that_still_has_a_rank_is_left_alone() -> None:
    with waiting(sys.executable, "-c", BUSY_AGENT) as child:
        assert child.stdout is not None
        child.stdout.readline()
        end(child)
        child.communicate("\n")
        assert child.returncode == 7


def test_one_that_ends_by_itself_is_not_waited_for() -> None:
    with waiting(sys.executable, "-c", "") as child:
        who = processes.identity(child.pid)
        child.wait()
        processes.kill_after(who, 1e9)


def test_an_agent_that_hangs_after_its_rank_failed_is_ended() -> None:
    with waiting(sys.executable, "-c", AGENT, env=TORCHRUN) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "1\n"
        assert child.wait(PATIENCE_S) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("environment", "is_watched"),
    [(TORCHRUN, True), ({}, False), ({**TORCHRUN, "TORCHELASTIC_MAX_RESTARTS": "3"}, False)],
    ids=["torchrun", "no torchrun", "torchrun that would start it again"],
)
def test_only_torchrun_that_starts_nothing_again_is_watched(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], is_watched: bool
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: started.append(command))
    watchdog._start_reaper(environment)
    assert bool(started) == is_watched


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
