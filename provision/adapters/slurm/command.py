"""Runs one of Slurm's commands, and says in our errors why it did not answer."""

from __future__ import annotations

import re
from collections.abc import Callable

from provision.core import process
from provision.core.errors import (
    ProvisionError,
    TimedOut,
    ToolFailed,
    ToolMissing,
    Unreachable,
)

ANSWER_TIMEOUT_S = 60.0
_NO_CONTROLLER = re.compile(
    r"contact slurm controller|unable to contact|connection refused|configuration (source|file)",
    re.I,
)


def run_slurm(command: list[str], refusal: Callable[[str], ProvisionError]) -> str:
    """What the command printed. refusal: the error for what Slurm says where it refuses.

    Raises ToolMissing without the command, and Unreachable if the controller does not answer.
    """
    try:
        return process.run(command, timeout_s=ANSWER_TIMEOUT_S).stdout
    except ToolMissing as error:
        raise ToolMissing(
            f"There is no `{command[0]}` on this machine.",
            advice="Run this where Slurm's commands work (a login node).",
        ) from error
    except TimedOut as error:
        raise Unreachable(
            f"Slurm's controller did not answer `{command[0]}` within {ANSWER_TIMEOUT_S:.0f} s.",
            advice="`scontrol ping` says whether it is up.",
        ) from error
    except ToolFailed as error:
        lines = [line.strip() for line in error.tail.splitlines() if line.strip()]
        message = "; ".join(re.sub(r"^\w+: (error: |fatal: )?", "", line) for line in lines)
        message = message or f"{command[0]} ended with status {error.status}"
        if _NO_CONTROLLER.search(message):
            raise Unreachable(
                f"Slurm's controller does not answer: {message}.",
                advice="`scontrol ping` says whether it is up. Run this where Slurm's commands "
                "work (a login node).",
            ) from error
        raise refusal(message) from error
