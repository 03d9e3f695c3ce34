"""Faults that a user may inject (--inject) to see the smoke test fail.

Faults that only one phase knows are in that phase.
"""

from __future__ import annotations

import errno
import os
import signal
import time

from .context import RankContext

# How long a fault waits for the other ranks to enter the phase in which it must be detected.
ENTRY_LIMIT_S = 5.0
PAUSE_S = 0.01
# The system error of each folder fault.
FOLDER_ERRORS = {"unwritable": errno.EROFS, "disk-full": errno.ENOSPC, "unmounted": errno.ESTALE}
# Longer than filesystem.SLOW_S.
FOLDER_DELAY_S = 5.2

OTHER_TORCH = "0.0.0+other"


def inject(context: RankContext, phase: str) -> None:
    """Injects the faults that strike at the beginning of a phase.

    die: like a rank that ran out of memory; stop: like under a debugger; raise: like torch;
    hang: like on a dead disk.
    """
    kinds = [
        kind
        for kind in ("die", "stop", "raise", "hang")
        if context.options.fault(kind, context.env.rank, phase)
    ]
    if not kinds:
        return
    # Rank 0's process hosts the store: ending it too early would keep the other ranks in the
    # phase before.
    deadline = time.monotonic() + ENTRY_LIMIT_S
    for rank in range(context.env.world_size):
        while context.client is not None and time.monotonic() < deadline:
            location = context.client.peek(f"at/{rank}")
            if location is not None and location["phase"] == phase:
                break
            time.sleep(PAUSE_S)
    if "die" in kinds:
        os.kill(os.getpid(), signal.SIGKILL)
    if "stop" in kinds:
        os.kill(os.getpid(), signal.SIGSTOP)
    if "raise" in kinds:
        raise RuntimeError("injected: an error as when memory is full")
    while "hang" in kinds:
        time.sleep(60)


def raise_folder_error(context: RankContext, *kinds: str) -> None:
    """Raises the system's error if the user injected one of these faults on this rank."""
    for kind in kinds:
        if context.options.fault(kind, context.env.rank):
            raise OSError(FOLDER_ERRORS[kind], os.strerror(FOLDER_ERRORS[kind]))
