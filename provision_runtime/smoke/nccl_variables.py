"""The variables of NCCL, and of torch for NCCL, that the smoke test sets for its own run. Pure.

Names and meanings: torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp of torch 1.13 to 2.9, and
NCCL's "Environment Variables" page.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..checks.releases import numbers

# Until this release torch's own switches had no prefix.
PREFIX_SINCE = (2, 2)
# These print less than the transports that we read.
QUIET_LEVELS = ("", "VERSION", "WARN")
# TUNING has the algorithm of each call, in a line of rank 0: some microseconds of a small message,
# whose time nobody judges, and nothing of a large one.
LOG_SUBSYSTEMS = "INIT,GRAPH,NET,TUNING"


def for_run(torch_version: str, environment: Mapping[str, str], log: Path) -> dict[str, str]:
    """What to set before the process group starts.

    log: the file for NCCL's own log. A user who already has such a file keeps it, and then the
    transports are unknown.
    """
    # Our watchdog ends a rank, after it has reported which one the others waited for. torch
    # must not end it before that. Without error handling (0), torch notices that a peer has
    # ended and leaves the process alone. Its monitor, since 2.2, would abort a process whose
    # collectives hang for minutes.
    prefix = "" if numbers(torch_version) < PREFIX_SINCE else "TORCH_"
    variables = {
        f"{prefix}NCCL_ASYNC_ERROR_HANDLING": "0",
        f"{prefix}NCCL_BLOCKING_WAIT": "0",
        "TORCH_NCCL_ENABLE_MONITORING": "0",
    }
    if "NCCL_DEBUG_FILE" in environment:
        return variables
    variables["NCCL_DEBUG_FILE"] = str(log)
    if environment.get("NCCL_DEBUG", "").upper() in QUIET_LEVELS:
        variables["NCCL_DEBUG"] = "INFO"
    variables["NCCL_DEBUG_SUBSYS"] = environment.get("NCCL_DEBUG_SUBSYS", LOG_SUBSYSTEMS)
    return variables
