"""Runs one of Slurm's commands; its failures become our errors."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping

from provision.core import process
from provision.core.errors import ProvisionError, TimedOut, ToolFailed, ToolMissing, Unreachable

COMMAND_TIMEOUT_S = 60.0
# A node or job takes some 200 bytes.
MOST_BYTES = 64 << 20
_NO_CONTROLLER = re.compile(
    r"contact slurm controller|unable to contact|connection refused|configuration file", re.I
)
_NO_CONFIGURATION = re.compile(r"configuration source|fetch_config", re.I)


# Those of the variables that Slurm sets in a job which name the cluster.
CLUSTER_VARIABLES = ("SLURM_CONF", "SLURM_CLUSTERS")


def environment_outside_jobs() -> dict[str, str]:
    """Our variables without those of the job in which this process runs: its GPUs and CPUs would
    become those of the steps of a job that is submitted here."""
    environment = process.clean_environment()
    if "SLURM_JOB_ID" in os.environ:
        for name in os.environ:
            if name.startswith("SLURM_") and name not in CLUSTER_VARIABLES:
                environment.pop(name, None)
    return environment


def run_slurm(
    command: list[str],
    refusal: Callable[[str], ProvisionError],
    env: Mapping[str, str] | None = None,
) -> str:
    """What the command printed. refusal: the error for the message with which Slurm refuses. env: its
    whole environment, ours by default.

    Raises ToolMissing without the command, and Unreachable if the controller does not respond.
    """
    try:
        return process.run(
            command, env=env, timeout_s=COMMAND_TIMEOUT_S, most_bytes=MOST_BYTES
        ).stdout
    except ToolMissing as error:
        raise ToolMissing(
            f"There is no `{command[0]}` on this machine.",
            advice="Run this where Slurm's commands work (a login node).",
        ) from error
    except TimedOut as error:
        raise Unreachable(
            f"Slurm's controller did not answer `{command[0]}` within {COMMAND_TIMEOUT_S:.0f} s.",
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
        if _NO_CONFIGURATION.search(message):
            raise Unreachable(
                f"Slurm is not configured on this machine: `{command[0]}` finds no slurm.conf.",
                advice="Run this on a login node of the cluster.",
                details=message,
            ) from error
        raise refusal(message) from error
