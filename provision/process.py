"""The one door to subprocess: no shell, a clean environment, nothing left running.

Every child is a process group of its own and is told by the kernel to die with us (PR_SET_PDEATHSIG), so that `kill -9` of
provision does not leave an installer writing into a folder that the next build cleans up.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from provision.errors import TimedOut, ToolFailed, ToolMissing

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_libc = ctypes.CDLL(None, use_errno=True)

# Variables that make a child look outside the environment it belongs to.
FOREIGN = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "LD_LIBRARY_PATH", "LD_PRELOAD")


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Our own environment without what leads a child's Python or loader astray, plus `extra`."""
    kept = {key: value for key, value in os.environ.items() if key not in FOREIGN}
    return {**kept, **(extra or {})}


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
    input_text: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and return what it printed.

    show: the child's standard error is our own terminal (its progress bars), when ours is one; its text is then not captured.
    Raises ToolMissing if it cannot be started, ToolFailed on a non-zero status (unless check is False), TimedOut after
    timeout_s. On any way out, Ctrl-C included, the child and its own children are gone.
    """
    argv = [os.fspath(part) for part in command]
    stderr = None if show and sys.stderr.isatty() else subprocess.PIPE
    try:
        child = subprocess.Popen(
            argv,
            env=dict(env) if env is not None else clean_environment(),
            cwd=cwd,
            stdin=subprocess.PIPE if input_text is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
    except OSError as error:
        raise ToolMissing(f"`{argv[0]}` cannot be started: {error.strerror}.") from error
    try:
        out, err = child.communicate(input_text, timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise TimedOut(f"`{' '.join(argv[:4])}` did not end within {timeout_s:.0f} s and was stopped.") from error
    finally:
        end_group(child)
        for stream in (child.stdin, child.stdout, child.stderr):
            if stream is not None:
                stream.close()
    if check and child.returncode != 0:
        raise ToolFailed(argv, child.returncode, (err or "") + (out if not err else ""))
    return subprocess.CompletedProcess(argv, child.returncode, out, err or "")


def end_group(child: subprocess.Popen[str]) -> None:
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
