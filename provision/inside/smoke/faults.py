"""Faults that a user may inject to see the smoke test fail; those of a single phase are in that phase."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .options import Options


def strike(options: Options, rank: int, phase: str) -> None:
    """At the beginning of a phase die, as a rank does that ran out of memory; stop, as under a debugger; raise, as torch does; or hang,
    as before a dead disk."""
    if options.fault("die", rank, phase):
        os.kill(os.getpid(), signal.SIGKILL)
    if options.fault("stop", rank, phase):
        os.kill(os.getpid(), signal.SIGSTOP)
    if options.fault("raise", rank, phase):
        raise RuntimeError("rehearsed: an error as when memory is full")
    while options.fault("hang", rank, phase):
        time.sleep(60)
