"""torchrun's agent, which may hang long after its ranks have ended.

It asks the store of its rendezvous (c10d) whether hosts want to join, and only afterwards looks after its ranks. Where the host of that
store is gone the answer never comes: the agent stood in that read until TCP gave up, 940 s after the link was lost (torch 2.13; 2.3.1
does so too), and took no SIGTERM, since c10d repeats a read that a signal interrupts. So a rank that failed leaves somebody behind who
sees whether the agent goes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, NoReturn

from ..comm import processes

if TYPE_CHECKING:
    from collections.abc import Mapping

# An agent that is well looks after its ranks every 5 s (torchrun's --monitor-interval until torch 2.3; later every 0.1 s), and is gone at
# most 4 s later (seen with 4 hosts on 2 busy cores).
STAYS_S = 10.0


def end_rank(success: bool) -> NoReturn:
    """At once, without what Python and torch do at the end."""
    try:
        if not success:
            _see_off(os.environ)
    finally:
        os._exit(0 if success else 1)


def _see_off(environment: Mapping[str, str]) -> None:
    """Under torchrun that starts no rank again: a process that ends the agent if in STAYS_S it has not ended by itself and has no rank
    left to look after. Where the agent is process 1 of a container it cannot."""
    if (
        "TORCHELASTIC_RUN_ID" not in environment
        or environment.get("TORCHELASTIC_MAX_RESTARTS") != "0"
    ):
        return
    who = processes.identity(os.getppid())
    subprocess.Popen(
        [sys.executable, "-I", "-S", processes.__file__, *who, str(STAYS_S)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
