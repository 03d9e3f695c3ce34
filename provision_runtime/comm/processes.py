"""Whether any process is alive, stopped, or gone. Linux only, through /proc.

A number alone does not identify a process: numbers are reused, and each container has its own. So
an identity is the number, the time the process started, and the namespace that has the number.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Callable

ALIVE, STOPPED, GONE, UNKNOWN = "alive", "stopped", "gone", "unknown"
PROC = Path("/proc")
MAX_COMMAND_LENGTH = 240
PR_SET_PDEATHSIG = 1  # linux/prctl.h
# Instead of proc(5)'s state letter, if this process has no permission to read it.
HIDDEN = "?"


def this_process() -> list[str]:
    """The namespace of process numbers (boot and pid namespace), this process's number, and its
    start time.
    """
    return identity(os.getpid())


def identity(number: int) -> list[str]:
    return [_namespace(), str(number), _status(number)[1]]


def state(identity: list[str]) -> str:
    """ALIVE, STOPPED or GONE; UNKNOWN for a process of another namespace or a hidden one."""
    namespace, number, started = identity
    if namespace != _namespace():
        return UNKNOWN
    letter, started_now = _status(int(number))
    if letter == HIDDEN:
        return UNKNOWN
    if started_now != started or letter in "ZX":
        return GONE
    return STOPPED if letter in "Tt" else ALIVE


def death_signal(number: int) -> Callable[[], None]:
    """What a child calls between fork and exec, so that the kernel sends it this signal when its
    parent ends, however it ends (prctl(2)). It ends at once if the parent has ended already."""
    import ctypes

    prctl = ctypes.CDLL(None).prctl  # not in the child: a thread may have held the loader's lock
    parent = os.getpid()

    def bind() -> None:
        prctl(PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            os._exit(1)

    return bind


def children(number: int) -> list[int]:
    """The live children of a process."""
    numbers = []
    for path in PROC.glob("[0-9]*"):
        letter, parent = _stat_fields(path.name)[:2]
        if parent == str(number) and letter not in "ZX":
            numbers.append(int(path.name))
    return sorted(numbers)


def command_line(number: int) -> str:
    """The command of a process, for messages; empty if it cannot be read."""
    folder = PROC / str(number)
    try:
        arguments = (folder / "cmdline").read_bytes().split(b"\0")
        text = " ".join(part.decode(errors="replace") for part in arguments if part)
        return text[:MAX_COMMAND_LENGTH] or (folder / "comm").read_text().strip()
    except OSError:
        return ""


def _namespace() -> str:
    boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"


def _status(number: int) -> tuple[str, str]:
    """State letter and start time in clock ticks (proc(5), fields 3 and 22).

    The time is empty when the process does not exist or is hidden.
    """
    fields = _stat_fields(str(number))
    return fields[0], fields[19]


def _stat_fields(number: str) -> list[str]:
    """The fields of proc(5)'s stat from the third on: state, parent and so on.

    If the file cannot be read, a signal shows whether the process is gone: /proc may be mounted so
    that it hides other users' processes (hidepid=2).
    """
    try:
        text = (PROC / number / "stat").read_text()
    except OSError as error:
        is_absent = isinstance(error, (FileNotFoundError, ProcessLookupError))
        letter = "X" if is_absent and not _accepts_signals(int(number)) else HIDDEN
        return [letter, *[""] * 19]
    # The second field, the command in parentheses, may itself hold spaces and parentheses.
    return text.rpartition(")")[2].split()


def _accepts_signals(number: int) -> bool:
    """Whether the process exists: a signal could be sent, or is refused."""
    try:
        os.kill(number, 0)
    except (ProcessLookupError, OverflowError):  # OverflowError: no process can have this number
        return False
    except OSError:
        pass
    return True
