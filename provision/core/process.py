"""The one door to subprocess: no shell, a clean environment, nothing left running.

Every child leads its own process group, and the kernel kills it when we die (PR_SET_PDEATHSIG), so
`kill -9` of provision does not leave an installer writing into a folder that the next build cleans
up. What the child itself started ends then only if the caller asked for that: builds of packages do.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NoReturn, TypeVar

from provision.core.errors import OutputTooLong, TimedOut, ToolFailed, ToolMissing

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
# Reads a pipe that only our process holds open. SIGTERM first: ninja's jobs have groups of their own.
_GUARD = 'read line || { kill -s TERM -- "-$1"; sleep 1; kill -s KILL -- "-$1"; }'

Item = TypeVar("Item")
Result = TypeVar("Result")

# Children that some thread waits for, and those that `terminate_children` ended: Ctrl-C reaches the
# main thread only.
_running: set[subprocess.Popen[str]] = set()
_interrupted: set[subprocess.Popen[str]] = set()
# How often Ctrl-C, and children that other threads start after it, are looked for.
INTERRUPT_POLL_S = 0.2


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Our own environment variables without those that mislead a child's Python or loader, plus
    `extra`."""
    variables = {key: value for key, value in os.environ.items() if key not in FOREIGN_VARIABLES}
    variables.update(extra or {})
    return variables


def exec_command(command: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Become the command: it gets our terminal, signals and exit code.

    env: its whole environment, in which it is also looked up. Raises ToolMissing.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # Python ignores these two, and a program that is started so would ignore them too.
    ignored = (signal.SIGPIPE, signal.SIGXFSZ)
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(command[0], list(command), env)
    except FileNotFoundError as error:
        raise ToolMissing(
            f"There is no `{command[0]}` on PATH.",
            advice=f"Install it, or run elsewhere: {shlex.join(command)}",
        ) from error
    finally:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)


def run(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float | None = None,
    check: bool = True,
    on_stdout_line: Callable[[str], None] | None = None,
    on_stderr_line: Callable[[str], None] | None = None,
    stdin: bytes = b"",
    owner_writes_only: bool = False,
    most_bytes: int | None = None,
    guarded: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and return what it printed.

    on_stdout_line, on_stderr_line: called, in
    another thread, with each line of the child's standard output or error as it comes. stdin: what the
    child reads. owner_writes_only: nobody else may write to what the child makes, whatever the user's
    umask is. most_bytes: of each output; no more is read. guarded: if we are killed, what the child
    started ends, too. Raises ToolMissing if it cannot be
    started, ToolFailed on a non-zero status (unless check is False), OutputTooLong, TimedOut after
    timeout_s. In any case, Ctrl-C included, the child and its children have ended afterwards.
    """
    argv = [os.fspath(part) for part in command]
    out_reader: _LinePipe | None = None
    err_reader: _LinePipe | None = None
    if on_stdout_line is not None or most_bytes is not None:
        out_reader = _LinePipe(on_stdout_line, most_bytes)
    if on_stderr_line is not None or most_bytes is not None:
        err_reader = _LinePipe(on_stderr_line, most_bytes)
    readers = [reader for reader in (out_reader, err_reader) if reader is not None]
    with ExitStack() as resources, ExitStack() as signals:
        for reader in readers:
            resources.enter_context(reader)
        child_input = _open_input(stdin)
        resources.callback(os.close, child_input)
        signals.enter_context(hold_signals())
        try:
            child = subprocess.Popen(
                argv,
                env=clean_environment() if env is None else dict(env),
                cwd=cwd,
                stdin=child_input,
                stdout=out_reader.child_end if out_reader else subprocess.PIPE,
                stderr=err_reader.child_end if err_reader else subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
                preexec_fn=_protect_files if owner_writes_only else _die_with_parent,
            )
        except OSError as error:
            raise ToolMissing(f"`{argv[0]}` cannot be started: {error.strerror}.") from error
        _running.add(child)
        try:
            if guarded:
                resources.enter_context(_group_guard(child))
            signals.close()
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
    if child in _interrupted:
        _interrupted.discard(child)
        raise KeyboardInterrupt
    out = out_reader.text() if out_reader else out
    err = err_reader.text() if err_reader else err
    if any(reader.is_cut for reader in readers):
        raise OutputTooLong(argv, child.returncode, f"it printed more than {most_bytes} bytes")
    if check and child.returncode != 0:
        raise ToolFailed(argv, child.returncode, err or out)
    return subprocess.CompletedProcess(argv, child.returncode, out, err)


@contextmanager
def hold_signals() -> Iterator[None]:
    """Handle Ctrl-C and SIGTERM after the block.

    A start with `preexec_fn` runs the hooks of os.register_at_fork, logging's among them. Python
    prints an exception in a hook and drops it, so a KeyboardInterrupt there would be lost.
    Handlers run in the main thread only.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
    received = []
    for number in handlers:
        signal.signal(number, lambda received_number, frame: received.append(received_number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for received_number in received:
        signal.raise_signal(received_number)


@contextmanager
def _group_guard(child: subprocess.Popen[str]) -> Iterator[None]:
    """A process that ends a child's group when we are killed, before the end of the block."""
    guard = subprocess.Popen(
        ["/bin/sh", "-c", _GUARD, "sh", str(child.pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        guard.kill()
        guard.communicate()


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _protect_files() -> None:
    _die_with_parent()
    foreign_write_bits = stat.S_IWGRP | stat.S_IWOTH
    os.umask(os.umask(foreign_write_bits) | foreign_write_bits)


def start_piped(argv: Sequence[str]) -> subprocess.Popen[bytes]:
    """A process with three pipes, for callers with an event loop of their own.

    Nothing runs between fork and exec, so that Python can use vfork: its cost does not grow with our
    memory. Our files have the flag that closes them.
    """
    pipe = subprocess.PIPE
    return subprocess.Popen(
        argv,
        bufsize=0,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        close_fds=False,
    )


def run_in_threads(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int
) -> list[Result]:
    """The results of a function that runs commands, in the order of the items.

    After an error, or Ctrl-C, nothing more begins, and the commands that run are ended.
    """
    from concurrent.futures import Future, ThreadPoolExecutor, wait

    with ThreadPoolExecutor(threads) as pool:
        futures: list[Future[Result]] = []
        results: list[Result] = []
        try:
            # Ctrl-C within `submit` would lose the future that it was about to return.
            with hold_signals():
                futures += [pool.submit(function, item) for item in items]
            # Python does not notice a signal that comes just before it waits for a lock.
            for future in futures:
                while wait([future], INTERRUPT_POLL_S).not_done:
                    continue
                results.append(future.result())
            return results
        except BaseException:
            for future in futures:
                future.cancel()
            terminate_children()
            while wait(futures, INTERRUPT_POLL_S).not_done:
                terminate_children()
            raise


def terminate_children() -> None:
    """End every child that some thread still waits for; its `run` raises KeyboardInterrupt there."""
    for child in tuple(_running):
        _interrupted.add(child)
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


class _LinePipe:
    """A pipe for a child's output, and a thread that reads it while the child runs: each line is
    passed on as it comes, and recorded. most_bytes: if more comes, no more is read, and it is cut."""

    def __init__(self, on_line: Callable[[str], None] | None, most_bytes: int | None) -> None:
        our_end, self.child_end = os.pipe()
        self._file = os.fdopen(our_end, errors="replace")
        self._on_line, self._most_bytes = on_line, most_bytes
        self._lines: list[str] = []
        self.is_cut = False
        self._thread = threading.Thread(target=self._forward, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exc: object) -> None:
        os.close(self.child_end)
        self._thread.join(timeout=GRACE_S)
        self._file.close()

    def _forward(self) -> None:
        size = 0
        while line := self._file.readline(self._most_bytes or -1):
            size += len(line)
            if self._most_bytes is not None and size > self._most_bytes:
                self.is_cut = True
                self._file.close()  # which ends the child
                return
            self._lines.append(line)
            if self._on_line is not None:
                self._on_line(line)

    def text(self) -> str:
        return "".join(self._lines)


def _open_input(data: bytes) -> int:
    """Where a child reads this: a file in memory. For nothing it is /dev/null, or a pipe that is at its
    end where that is broken: `doctor` must run there."""
    if data:
        file = os.memfd_create("stdin")
        os.write(file, data)
        os.lseek(file, 0, os.SEEK_SET)
        return file
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        child_end, our_end = os.pipe2(os.O_CLOEXEC)
        os.close(our_end)
        return child_end
