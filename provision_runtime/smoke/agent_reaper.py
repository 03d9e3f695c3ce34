"""Ends torchrun's agent if it hangs after its ranks have ended.

The agent asks the store of its rendezvous (c10d) whether hosts want to join, and only then checks
its ranks. If the host of that store is gone, the answer never comes: the agent stayed in that read
until TCP gave up, 940 s after the link was lost (torch 2.13; 2.3.1 does so too), and ignored
SIGTERM, since c10d repeats a read that a signal interrupts. So a rank that failed leaves a process
behind that checks whether the agent ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, NoReturn

from ..comm import processes

if TYPE_CHECKING:
    from collections.abc import Mapping

# A healthy agent checks its ranks every 5 s (torchrun's --monitor-interval until torch 2.3; later
# every 0.1 s), and is gone at most 4 s later (seen with 4 hosts on 2 busy cores).
GRACE_S = 10.0


def end_rank(success: bool) -> NoReturn:
    """Ends this process at once, without what Python and torch do at exit."""
    try:
        if not success:
            _start_reaper(os.environ)
    finally:
        os._exit(0 if success else 1)


def _start_reaper(environment: Mapping[str, str]) -> None:
    """Starts a process that kills the agent if, after GRACE_S, it has not ended and has no rank
    left.

    Only under a torchrun that restarts no ranks. It cannot if the agent is process 1 of a container.
    """
    if "TORCHELASTIC_RUN_ID" not in environment:
        return
    if environment.get("TORCHELASTIC_MAX_RESTARTS") != "0":
        return
    agent = processes.identity(os.getppid())
    subprocess.Popen(
        [sys.executable, "-I", "-S", processes.__file__, *agent, str(GRACE_S)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
