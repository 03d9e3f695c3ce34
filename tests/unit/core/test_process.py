"""Running subprocesses: real children, and none left running."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from provision.core.errors import OutputTooLong, TimedOut, ToolFailed, ToolMissing
from provision.core.process import (
    clean_environment,
    exec_command,
    run,
    run_in_threads,
)


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


def test_timeout_counts_while_a_grandchild_holds_the_output() -> None:
    with pytest.raises(TimedOut, match="within 1 s"):
        run(["sh", "-c", "sleep 10 & echo started"], timeout_s=1)


@pytest.mark.parametrize("guarded", [False, True])
def test_killed_parent_ends_its_child(tmp_path: Path, guarded: bool) -> None:
    """guarded: with what the child itself started, like a compiler."""
    own = f"echo $$ > {shlex.quote(str(tmp_path))}/pid; exec sleep 100"
    command = ["sh", "-c", f"sh -c {shlex.quote(own)} & wait" if guarded else own]
    script = f"from provision.core.process import run; run({command}, guarded={guarded})"
    parent = subprocess.Popen([sys.executable, "-c", script])
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
        time.sleep(0.02)
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    while guarded and len(children.read_text().split()) < 2:  # the guard starts after the child
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


def test_a_child_reads_what_it_is_given() -> None:
    text = "line\n" * 200_000
    assert run(["cat"], stdin=text.encode()).stdout == text


def test_a_child_that_does_not_read_is_judged_by_its_status() -> None:
    assert run(["sh", "-c", "exit 7"], stdin=b"0" * 10_000_000, check=False).returncode == 7


def test_a_command_that_does_not_exist_leaves_our_signals() -> None:
    """A broken pipe would end us without a word."""
    with pytest.raises(ToolMissing, match="no `no-such-command` on PATH"):
        exec_command(["no-such-command"], os.environ)
    assert signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN


def test_a_child_that_a_signal_ended_has_failed() -> None:
    with pytest.raises(ToolFailed) as caught:
        run([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
    assert caught.value.status == -9


@pytest.mark.parametrize("hook", ["before", "after_in_parent"])
def test_ctrl_c_while_a_child_starts_is_not_lost(tmp_path: Path, hook: str) -> None:
    """Python drops an exception in a hook of a fork, so the signal must arrive afterwards."""
    pid = tmp_path / "pid"
    command = ["sh", "-c", f"echo $$ >{shlex.quote(str(pid))}; exec sleep 100"]
    script = (
        "import os, signal\n"
        "from provision.core.process import run\n"
        f"os.register_at_fork({hook}=lambda: signal.raise_signal(signal.SIGINT))\n"
        "try:\n"
        f"    run({command})\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert (result.stdout, result.stderr) == ("interrupted\n", "")
    assert not pid.exists() or not pid.read_text() or gone(int(pid.read_text()))


def test_lines_of_standard_output_are_passed_on_while_the_child_runs(tmp_path: Path) -> None:
    """The child goes on only after its first line was seen."""
    seen = tmp_path / "seen"
    lines = []

    def note(line: str) -> None:
        lines.append(line)
        seen.touch()

    script = f"echo first; while ! [ -e '{seen}' ]; do sleep 0.01; done; echo second; echo no >&2"
    result = run(["sh", "-c", script], on_stdout_line=note, timeout_s=60)
    assert lines == ["first\n", "second\n"]
    assert (result.stdout, result.stderr) == ("first\nsecond\n", "no\n")


def test_nobody_else_may_write_to_what_a_child_makes(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        run(["touch", tmp_path / "protected"], owner_writes_only=True)
        run(["touch", tmp_path / "usual"])
        os.umask(0o077)
        run(["touch", tmp_path / "stricter"], owner_writes_only=True)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"protected": 0o644, "usual": 0o666, "stricter": 0o600}


def test_threads_return_results_in_order() -> None:
    def printed(number: int) -> str:
        return run(["echo", str(number)]).stdout

    assert run_in_threads(printed, range(5), 3) == ["0\n", "1\n", "2\n", "3\n", "4\n"]


def test_ctrl_c_ends_the_commands_of_threads() -> None:
    """Also those that would be tried again, and those that have not begun."""
    began: list[int] = []

    def work(number: int) -> None:
        for _ in range(3):
            began.append(number)
            run(["sleep", "60"], check=False)

    def interrupt() -> None:
        while len(began) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run_in_threads(work, range(4), 2)
    thread.join()
    assert sorted(began) == [0, 1]


def test_ctrl_c_while_threads_start_ends_their_commands() -> None:
    """It arrives before the last item is handed out."""
    began: list[int] = []

    def work(number: int) -> None:
        for _ in range(3):
            began.append(number)
            run(["sleep", "1"], check=False)

    def items() -> Iterator[int]:
        yield 0
        while not began:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)
        yield 1

    with pytest.raises(KeyboardInterrupt):
        run_in_threads(work, items(), 1)
    assert began == [0]


@pytest.mark.parametrize("where", ["", ">&2"])
@pytest.mark.parametrize("text", ["yes", "yes | tr -d '\\n'"])
def test_no_more_is_read_than_an_answer_can_be(where: str, text: str) -> None:
    """Of a command that prints without end, with line ends and without."""
    with pytest.raises(OutputTooLong):
        run(["sh", "-c", f"{{ {text}; }} {where}"], most_bytes=1000, timeout_s=60)
    finished = run(["sh", "-c", f"{{ {text}; }} | head -c 1000 {where}"], most_bytes=1000)
    assert len(finished.stderr if where else finished.stdout) == 1000
