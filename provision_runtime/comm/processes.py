"""What became of a process that may not be ours: it lives, it is stopped, or it is gone. Linux only, through /proc.

A number alone does not name a process: it is used again, and containers count for themselves. So an identity is the
number, the time it started, and the space in which it was counted.

Run as a program, it ends a process that does not end by itself: `processes.py SPACE NUMBER STARTED SECONDS`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

ALIVE, STOPPED, GONE, UNKNOWN = "alive", "stopped", "gone", "unknown"
PROC = Path("/proc")
COMMAND_LETTERS = 240
POLL_S = 0.1
# Where proc(5) has a process's state letter: it cannot be read here.
HIDDEN = "?"


def own_identity() -> list[str]:
    """Where process numbers are counted (boot and pid namespace), this process's number, and when it started."""
    return identity(os.getpid())


def identity(number: int) -> list[str]:
    return [_space(), str(number), _status(number)[1]]


def state(identity: list[str]) -> str:
    """What a process is doing, if it is one that can be seen from here."""
    space, number, started = identity
    if space != _space():
        return UNKNOWN
    letter, found = _status(int(number))
    if letter == HIDDEN:
        return UNKNOWN
    if found != started or letter in "ZX":
        return GONE
    return STOPPED if letter in "Tt" else ALIVE


def kill(identity: list[str]) -> None:
    """End a process that can be seen from here and is still the one that is meant."""
    if state(identity) in (ALIVE, STOPPED):
        try:
            os.kill(int(identity[1]), signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return


def end_if_it_stays(identity: list[str], within_s: float) -> None:
    """End a process that is there after these seconds, unless it still has children other than this process."""
    end = time.monotonic() + within_s
    while state(identity) in (ALIVE, STOPPED):
        if time.monotonic() >= end:
            return None if _has_children(identity[1]) else kill(identity)
        time.sleep(POLL_S)
    return None


def _has_children(number: str) -> bool:
    """Other than this process, which the parent may have inherited, and than those that ended."""
    others = [path.name for path in PROC.glob("[0-9]*") if path.name != str(os.getpid())]
    return any(_fields(other)[1] == number and _fields(other)[0] not in "ZX" for other in others)


def name(number: int) -> str:
    """The command of a process, for people."""
    try:
        words = (PROC / str(number) / "cmdline").read_bytes().split(b"\0")
        return " ".join(word.decode(errors="replace") for word in words if word)[
            :COMMAND_LETTERS
        ] or _comm(number)
    except OSError:
        return ""


def _comm(number: int) -> str:
    return (PROC / str(number) / "comm").read_text().strip()


def _space() -> str:
    boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"


def _status(number: int) -> tuple[str, str]:
    """State letter and start time in clock ticks (proc(5), fields 3 and 22); empty where there is no such process, or it is hidden."""
    fields = _fields(str(number))
    return fields[0], fields[19]


def _fields(number: str) -> list[str]:
    """From the third field of proc(5)'s stat on: state, parent and so on. What cannot be read is of a process that is gone only if the
    kernel says so too: /proc may be mounted so that it hides those of others (hidepid=2)."""
    try:
        text = (PROC / number / "stat").read_text()
    except OSError as error:
        is_absent = isinstance(error, (FileNotFoundError, ProcessLookupError))
        return ["X" if is_absent and not _is_there(int(number)) else HIDDEN, *[""] * 19]
    # The second field, the command in parentheses, may itself hold spaces and parentheses.
    return text.rpartition(")")[2].split()


def _is_there(number: int) -> bool:
    """Whether a signal could be sent, or would be refused."""
    try:
        os.kill(number, 0)
    except (ProcessLookupError, OverflowError):  # the latter is a number that none has
        return False
    except OSError:
        return True
    return True


if __name__ == "__main__":
    end_if_it_stays(sys.argv[1:4], float(sys.argv[4]))
