"""What became of a process that may not be ours: it lives, it is stopped, or it is gone. Linux only, through /proc.

A number alone does not name a process: it is used again, and containers count for themselves. So an identity is the
number, the time it started, and the space in which it was counted.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

ALIVE, STOPPED, GONE, UNKNOWN = "alive", "stopped", "gone", "unknown"
PROC = Path("/proc")
COMMAND_LETTERS = 240


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


def name(number: int) -> str:
    """The command of a process, for people."""
    try:
        words = (PROC / str(number) / "cmdline").read_bytes().split(b"\0")
        return " ".join(word.decode(errors="replace") for word in words if word)[:COMMAND_LETTERS] or _comm(number)
    except OSError:
        return ""


def _comm(number: int) -> str:
    return (PROC / str(number) / "comm").read_text().strip()


def _space() -> str:
    boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"


def _status(number: int) -> tuple[str, str]:
    """State letter and start time in clock ticks (proc(5), fields 3 and 22); empty where there is no such process."""
    try:
        text = (PROC / str(number) / "stat").read_text()
    except OSError:
        return "X", ""
    # The second field, the command in parentheses, may itself hold spaces and parentheses.
    fields = text.rpartition(")")[2].split()
    return fields[0], fields[19]
