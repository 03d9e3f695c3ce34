"""Running subprocesses: real children, and none left running."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from provision.core.errors import TimedOut, ToolFailed, ToolMissing
from provision.core.process import clean_environment, run, write_all


def gone(pid: int) -> bool:
    """Whether a process has ended (a zombie has)."""
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


def test_run_returns_the_output() -> None:
    result = run([sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr)"])
    assert (result.stdout, result.stderr, result.returncode) == ("out\n", "err\n", 0)


def test_failure_reports_command_status_and_last_lines() -> None:
    with pytest.raises(ToolFailed, match=r"ended with status 3: last words") as caught:
        run(
            [
                sys.executable,
                "-c",
                "import sys; print('first'); print('last words', file=sys.stderr); sys.exit(3)",
            ]
        )
    assert caught.value.status == 3
    assert caught.value.command[0] == sys.executable


def test_a_missing_tool_is_named() -> None:
    with pytest.raises(ToolMissing, match="no-such-tool"):
        run(["no-such-tool"])


def test_timeout_ends_the_child_and_its_children(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = f"import subprocess, time; p = subprocess.Popen(['sleep', '100']); open({str(pid)!r}, 'w').write(str(p.pid)); time.sleep(100)"
    with pytest.raises(TimedOut, match="within 2 s"):
        run([sys.executable, "-c", script], timeout_s=2)
    assert gone(int(pid.read_text()))


def test_killed_parent_ends_its_child(tmp_path: Path) -> None:
    script = f"from provision.core.process import run; run(['sh', '-c', 'echo $$ > {tmp_path}/pid; exec sleep 100'])"
    parent = subprocess.Popen([sys.executable, "-c", script])
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
        time.sleep(0.02)
    parent.kill()
    parent.wait()
    assert gone(int((tmp_path / "pid").read_text()))


def test_foreign_variables_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/elsewhere")
    assert "PYTHONPATH" not in clean_environment()
    assert clean_environment({"PYTHONPATH": ""})["PYTHONPATH"] == ""
    assert clean_environment()["PATH"] == os.environ["PATH"]


def test_a_child_is_fed_while_it_runs() -> None:
    def feed(descriptor: int) -> None:
        for number in range(3):
            write_all(descriptor, f"line {number}\n".encode())

    assert run(["cat"], feed=feed).stdout == "line 0\nline 1\nline 2\n"


def test_a_child_that_does_not_read_what_it_is_fed_is_judged_by_its_status() -> None:
    def feed(descriptor: int) -> None:
        write_all(descriptor, b"0" * 10_000_000)

    assert run(["sh", "-c", "exit 7"], feed=feed, check=False).returncode == 7


def test_a_child_that_a_signal_ended_has_failed() -> None:
    with pytest.raises(ToolFailed) as caught:
        run([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
    assert caught.value.status == -9
