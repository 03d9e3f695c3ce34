"""The one door to subprocess: no shell, a clean environment, nothing left running.

Every child is a process group of its own and is told by the kernel to die with us (PR_SET_PDEATHSIG), so that `kill -9` of
provision does not leave an installer writing into a folder that the next build cleans up.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from provision.core.errors import TimedOut, ToolFailed, ToolMissing

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_libc = ctypes.CDLL(None, use_errno=True)

# Variables that make a child look outside the environment it belongs to.
FOREIGN = (
    "PYTHONPATH",
    "PYTHONHOME",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "CONDA_DEFAULT_ENV",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
)


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Our own environment without what leads a child's Python or loader astray, plus `extra`."""
    kept = {key: value for key, value in os.environ.items() if key not in FOREIGN}
    return {**kept, **(extra or {})}


# What threads of ours wait for: Ctrl-C reaches the main thread only.
_running: set[subprocess.Popen[str]] = set()


def exec_command(command: Sequence[str], extra: Mapping[str, str] | None = None) -> NoReturn:
    """Become the command: its terminal, signals and exit code are ours. extra: variables. ToolMissing where there is none."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    try:
        os.execvpe(command[0], list(command), {**os.environ, **(extra or {})})
    except FileNotFoundError as error:
        shown = shlex.join(command)
        raise ToolMissing(
            f"There is no `{command[0]}` on PATH.", advice=f"Install it, or run elsewhere: {shown}"
        ) from error


def terminate_children() -> None:
    """End every child that some thread still waits for; its `run` raises ToolFailed there."""
    for child in tuple(_running):
        terminate_group(child)


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def run(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float | None = None,
    check: bool = True,
    show: bool = False,
    on_stderr_line: Callable[[str], None] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and return what it printed.

    show: where our standard error is a terminal, the child has one too and its progress bars are passed on.
    on_stderr_line: called, in another thread, with each line of the child's standard error as it comes.
    Raises ToolMissing if it cannot be started, ToolFailed on a non-zero status (unless check is False), TimedOut after
    timeout_s. On any way out, Ctrl-C included, the child and its own children are gone.
    """
    argv = [os.fspath(part) for part in command]
    with _read_stderr(show, on_stderr_line) as terminal:
        try:
            child = subprocess.Popen(
                argv,
                env=dict(env) if env is not None else clean_environment(),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=terminal.child_end if terminal else subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        except OSError as error:
            raise ToolMissing(f"`{argv[0]}` cannot be started: {error.strerror}.") from error
        _running.add(child)
        try:
            out, err = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise TimedOut(
                f"`{' '.join(argv[:4])}` did not end within {timeout_s:.0f} s and was stopped."
            ) from error
        finally:
            _running.discard(child)
            terminate_group(child)
            for stream in (child.stdout, child.stderr):
                if stream is not None:
                    stream.close()
    said = terminal.text() if terminal else err
    if check and child.returncode != 0:
        raise ToolFailed(argv, child.returncode, said or out)
    return subprocess.CompletedProcess(argv, child.returncode, out, said)


class _Terminal:
    """A terminal for a child: what it writes goes to ours as it is, and is kept, so that an error can still be read."""

    KEPT = 64 * 1024

    def __init__(self) -> None:
        self._ours, self.child_end = pty.openpty()
        with contextlib.suppress(OSError):  # our own may not know its size
            fcntl.ioctl(
                self.child_end, termios.TIOCSWINSZ, fcntl.ioctl(2, termios.TIOCGWINSZ, b"\0" * 8)
            )
        self._kept = b""
        self._reader = threading.Thread(target=self._pass_on, daemon=True)

    def _pass_on(self) -> None:
        while True:
            try:
                piece = os.read(self._ours, 4096)
            except OSError:  # EIO: nobody has the other end any more
                return
            if not piece:
                return
            self._kept = (self._kept + piece)[-self.KEPT :]
            with contextlib.suppress(OSError):
                os.write(2, piece)

    def start(self) -> None:
        self._reader.start()

    def close(self) -> None:
        os.close(self.child_end)
        self._reader.join(timeout=5)
        os.close(self._ours)

    def text(self) -> str:
        """What was written, without what moves the cursor or sets colors."""
        plain = re.sub(
            r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07", "", self._kept.decode(errors="replace")
        )
        return plain.replace("\r\n", "\n").replace("\r", "\n")


class _LinePipe:
    """A pipe for a child's standard error: each line is passed on as it comes, and kept."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        read_end, self.child_end = os.pipe()
        self._lines: list[str] = []
        self._on_line = on_line
        self._file = os.fdopen(read_end, errors="replace")
        self._reader = threading.Thread(target=self._pass_on, daemon=True)

    def _pass_on(self) -> None:
        for line in self._file:
            self._lines.append(line)
            self._on_line(line)

    def start(self) -> None:
        self._reader.start()

    def close(self) -> None:
        os.close(self.child_end)
        self._reader.join(timeout=5)
        self._file.close()

    def text(self) -> str:
        return "".join(self._lines)


@contextlib.contextmanager
def _read_stderr(
    show: bool, on_line: Callable[[str], None] | None
) -> Iterator[_Terminal | _LinePipe | None]:
    """What reads the child's standard error meanwhile; None if it is read as a whole."""
    reader: _Terminal | _LinePipe
    if on_line is not None:
        reader = _LinePipe(on_line)
    elif show and sys.stderr.isatty():
        reader = _Terminal()
    else:
        yield None
        return
    reader.start()
    try:
        yield reader
    finally:
        reader.close()


def terminate_group(child: subprocess.Popen[str]) -> None:
    """End a child that is still running, and what it started. A child that ended by itself has waited for its own."""
    if child.poll() is not None:
        return
    for sign, patience_s in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(child.pid, sign)
            child.wait(patience_s)
            return
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
