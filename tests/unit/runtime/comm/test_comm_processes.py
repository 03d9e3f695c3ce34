"""The state of a process that may belong to another user."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from provision_runtime.checkpoint import layout
from provision_runtime.comm import processes


def test_running_stopped_and_ended_processes() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        identity = processes.identity(child.pid)
        assert processes.state(identity) == processes.ALIVE
        child.send_signal(signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        assert processes.state(identity) == processes.STOPPED
        child.kill()
        assert child.wait() == -signal.SIGKILL
        assert processes.state(identity) == processes.GONE
    finally:
        child.kill()
        child.wait()


def test_reused_pid_is_another_process() -> None:
    space, number, started = processes.this_process()
    assert processes.state([space, number, started]) == processes.ALIVE
    assert processes.state([space, number, str(int(started) - 1)]) == processes.GONE
    assert processes.state(["another boot", number, started]) == processes.UNKNOWN


def test_hidden_process_is_not_reported_as_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where /proc is mounted with hidepid=2, or cannot be read just now."""
    identity, own = processes.this_process(), layout.temporary("step-000000000001")
    ended = [identity[0], "4194305", identity[2]]
    assert (processes.state(ended), layout.is_leftover(own)) == (processes.GONE, False)
    (tmp_path / "sys").symlink_to("/proc/sys")
    (tmp_path / "self").symlink_to("/proc/self")
    monkeypatch.setattr(processes, "this_process", lambda: identity)
    monkeypatch.setattr(processes, "PROC", tmp_path)
    for _ in range(2):
        assert (processes.state(identity), layout.is_leftover(own)) == (processes.UNKNOWN, False)
        assert processes.state(ended) == processes.GONE
        (tmp_path / identity[1] / "stat").mkdir(parents=True, exist_ok=True)
