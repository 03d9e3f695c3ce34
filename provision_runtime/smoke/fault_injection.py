"""Faults that a user may inject (--inject) to see the smoke test fail.

Faults that only one phase knows are in that phase.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .context import RankContext

# How long a fault waits for the other ranks to enter the phase in which it is to show.
ENTRY_LIMIT_S = 5.0
PAUSE_S = 0.01
# The system error that each folder fault stands for.
FOLDER_ERRORS = {"unwritable": errno.EROFS, "disk-full": errno.ENOSPC, "unmounted": errno.ESTALE}
# Longer than folder_errors.SLOW_S.
FOLDER_DELAY_S = 5.2


def inject(context: RankContext, phase: str) -> None:
    """The faults that strike at the beginning of a phase.

    die: as a rank that ran out of memory; stop: as under a debugger; raise: as torch does;
    hang: as in front of a dead disk.
    """
    kinds = []
    for kind in ("die", "stop", "raise", "hang"):
        if context.options.fault(kind, context.env.rank, phase):
            kinds.append(kind)
    if not kinds:
        return
    _await_ranks(context, phase)
    if "die" in kinds:
        os.kill(os.getpid(), signal.SIGKILL)
    if "stop" in kinds:
        os.kill(os.getpid(), signal.SIGSTOP)
    if "raise" in kinds:
        raise RuntimeError("rehearsed: an error as when memory is full")
    while "hang" in kinds:
        time.sleep(60)


def raise_folder_error(context: RankContext, *kinds: str) -> None:
    """Fail as the system would, where the user injected one of these faults on this rank."""
    for kind in kinds:
        if context.options.fault(kind, context.env.rank):
            raise OSError(FOLDER_ERRORS[kind], os.strerror(FOLDER_ERRORS[kind]))


def delay_folder(context: RankContext) -> None:
    if context.options.fault("slow-folder", context.env.rank):
        time.sleep(FOLDER_DELAY_S)


def _await_ranks(context: RankContext, phase: str) -> None:
    """Rank 0's process hosts the store: ending it too early would keep the other ranks in the
    phase before."""
    deadline = time.monotonic() + ENTRY_LIMIT_S
    for rank in range(context.env.world_size):
        while context.client is not None and time.monotonic() < deadline:
            location = context.client.peek(f"at/{rank}")
            if location is not None and location["phase"] == phase:
                break
            time.sleep(PAUSE_S)
