"""Finds and runs the programs of this node, and reads its small files."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# A shell that ssh starts often has a shorter PATH than a login shell.
MORE_FOLDERS = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")
NOT_STARTED, TIMED_OUT = 127, 124


def which(name: str) -> str | None:
    folders = [os.environ.get("PATH", ""), *MORE_FOLDERS]
    return shutil.which(name, path=os.pathsep.join(folders))


def run_command(
    command: list[str], timeout_s: float, become: Callable[[], None] | None = None
) -> tuple[int, str]:
    """The status of a program, and what it printed if it succeeded, else the last line of its
    errors.

    become: gives the program another user, who gets none of our variables.
    """
    try:
        result = subprocess.run(
            [which(command[0]) or command[0], *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=timeout_s,
            cwd="/",
            preexec_fn=become,
            env=None if become is None else {},
        )
    except OSError as error:
        return NOT_STARTED, error.strerror or str(error)
    except subprocess.TimeoutExpired:
        return TIMED_OUT, f"{command[0]} did not end within {timeout_s:.0f} s"
    except subprocess.SubprocessError:  # root of a container may not be another user
        return run_command(command, timeout_s)
    if result.returncode == 0:
        return 0, result.stdout.decode(errors="replace").strip()
    lines = result.stderr.decode(errors="replace").strip().splitlines()
    return result.returncode, lines[-1].strip() if lines else ""


def is_caller_gone() -> bool:
    """Whether nobody reads our output any more: ssh or srun was killed, or the connection is gone."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # errors and the end of the other side are always polled
    return bool(poll.poll(0))


def read_text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None
