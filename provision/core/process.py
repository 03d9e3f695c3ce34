"""The one door to subprocess: no shell, a clean environment, nothing left running.

Every child leads its own process group, and the kernel kills it when we die (PR_SET_PDEATHSIG), so
`kill -9` of provision does not leave an installer writing into a folder that the next build cleans
up.
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
FOREIGN_VARIABLES = (
    "PYTHONPATH",
    "PYTHONHOME",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "CONDA_DEFAULT_ENV",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
)
# How long a child may take to end after each of these signals.
GRACE_S = 5.0
READ_BYTES = 4096
_TERMINAL_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")

# Children that some thread waits for: Ctrl-C reaches the main thread only.
_running: set[subprocess.Popen[str]] = set()


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Our own environment variables without those that mislead a child's Python or loader, plus
    `extra`."""
    variables = {key: value for key, value in os.environ.items() if key not in FOREIGN_VARIABLES}
    variables.update(extra or {})
    return variables


def exec_command(command: Sequence[str], extra: Mapping[str, str] | None = None) -> NoReturn:
    """Become the command: it gets our terminal, signals and exit code. extra: more variables.
    Raises ToolMissing."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    try:
        os.execvpe(command[0], list(command), {**os.environ, **(extra or {})})
    except FileNotFoundError as error:
        raise ToolMissing(
            f"There is no `{command[0]}` on PATH.",
            advice=f"Install it, or run elsewhere: {shlex.join(command)}",
        ) from error


def run(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float | None = None,
    check: bool = True,
    show: bool = False,
    on_stderr_line: Callable[[str], None] | None = None,
    feed: Callable[[int], None] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and return what it printed.

    show: if our standard error is a terminal, the child has one too and its progress bars are
    passed on. on_stderr_line: called, in another thread, with each line of the child's standard
    error as it comes. feed: writes to the descriptor of the child's standard input, in another
    thread; a BrokenPipeError there is no error. Raises ToolMissing if it cannot be started,
    ToolFailed on a non-zero status (unless check is False), TimedOut after timeout_s. In any case,
    Ctrl-C included, the child and its own children are gone afterwards.
    """
    argv = [os.fspath(part) for part in command]
    with _open_stderr_reader(show, on_stderr_line) as reader, _open_feeder(feed) as stdin:
        stderr = reader.child_end if reader else subprocess.PIPE
        child = _start(argv, env, cwd, stdin, stderr)
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
    if reader:
        err = reader.text()
    if check and child.returncode != 0:
        raise ToolFailed(argv, child.returncode, err or out)
    return subprocess.CompletedProcess(argv, child.returncode, out, err)


def _start(
    argv: Sequence[str], env: Mapping[str, str] | None, cwd: Path | None, stdin: int, stderr: int
) -> subprocess.Popen[str]:
    try:
        return subprocess.Popen(
            argv,
            env=dict(env) if env is not None else clean_environment(),
            cwd=cwd,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
    except OSError as error:
        raise ToolMissing(f"`{argv[0]}` cannot be started: {error.strerror}.") from error


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def terminate_children() -> None:
    """End every child that some thread still waits for; its `run` raises ToolFailed there."""
    for child in tuple(_running):
        terminate_group(child)


def terminate_group(child: subprocess.Popen[str]) -> None:
    """End a child that is still running, and its own children. A child that ended by itself has
    waited for its own."""
    if child.poll() is not None:
        return
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, signal_number)
            child.wait(GRACE_S)
            return
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


class _Terminal:
    """A terminal for a child: what it writes goes to ours unchanged, and its end is recorded, so
    that an error can still be read."""

    RECORDED_BYTES = 64 * 1024

    def __init__(self) -> None:
        self._our_end, self.child_end = pty.openpty()
        with contextlib.suppress(OSError):  # our own terminal may not know its size
            size = fcntl.ioctl(2, termios.TIOCGWINSZ, b"\0" * 8)
            fcntl.ioctl(self.child_end, termios.TIOCSWINSZ, size)
        self._recorded = b""
        self._reader = threading.Thread(target=self._forward, daemon=True)

    def _forward(self) -> None:
        while True:
            try:
                piece = os.read(self._our_end, READ_BYTES)
            except OSError:  # EIO: the other end is closed
                return
            if not piece:
                return
            self._recorded = (self._recorded + piece)[-self.RECORDED_BYTES :]
            with contextlib.suppress(OSError):
                os.write(2, piece)

    def start(self) -> None:
        self._reader.start()

    def close(self) -> None:
        os.close(self.child_end)
        self._reader.join(timeout=GRACE_S)
        os.close(self._our_end)

    def text(self) -> str:
        """What was written, without the codes that move the cursor or set colors."""
        plain = _TERMINAL_CODES.sub("", self._recorded.decode(errors="replace"))
        return plain.replace("\r\n", "\n").replace("\r", "\n")


class _LinePipe:
    """A pipe for a child's standard error: each line is passed on as it comes, and recorded."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        our_end, self.child_end = os.pipe()
        self._lines: list[str] = []
        self._on_line = on_line
        self._file = os.fdopen(our_end, errors="replace")
        self._reader = threading.Thread(target=self._forward, daemon=True)

    def _forward(self) -> None:
        for line in self._file:
            self._lines.append(line)
            self._on_line(line)

    def start(self) -> None:
        self._reader.start()

    def close(self) -> None:
        os.close(self.child_end)
        self._reader.join(timeout=GRACE_S)
        self._file.close()

    def text(self) -> str:
        return "".join(self._lines)


@contextlib.contextmanager
def _open_stderr_reader(
    show: bool, on_line: Callable[[str], None] | None
) -> Iterator[_Terminal | _LinePipe | None]:
    """What reads the child's standard error while it runs; None if it is read at its end."""
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


@contextlib.contextmanager
def _open_feeder(feed: Callable[[int], None] | None) -> Iterator[int]:
    """The child's standard input, into which another thread writes.

    The thread ends when the child does: its writes fail then.
    """
    if feed is None:
        yield subprocess.DEVNULL
        return
    child_end, our_end = os.pipe2(os.O_CLOEXEC)

    def write() -> None:
        try:
            feed(our_end)
        except BrokenPipeError:
            pass  # the child reads no more; its own status and messages say why
        finally:
            os.close(our_end)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield child_end
    finally:
        os.close(child_end)
        thread.join(timeout=GRACE_S)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes to a pipe."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
