"""Nodes of Slurm for as long as a command needs them: a job that only waits, in which the command
then runs steps with srun.

sbatch takes what the site requires (account, quality of service) from the variables SBATCH_*.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from provision.adapters.slurm.command import COMMAND_TIMEOUT_S, run_slurm
from provision.core import process
from provision.core.errors import InvalidSpec, TimedOut, Unreachable

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 10.0
# squeue(1), JOB STATE CODES.
ENDED = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "REVOKED", "TIMEOUT",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class AllocationRequest:
    """Whole nodes, by name. gpus: on each of them. time_s: after which Slurm takes them back.
    queue_s: how long to wait for them."""

    nodes: Sequence[str]
    partition: str
    gpus: int
    name: str
    time_s: float
    queue_s: float


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """A running job. srun_options: those with which srun starts a step in it."""

    job: str
    nodes: tuple[str, ...]
    srun_options: tuple[str, ...]


@contextmanager
def allocate(request: AllocationRequest) -> Iterator[Allocation]:
    """The nodes, until the end of the block.

    Raises InvalidSpec if Slurm refuses the job, TimedOut if it does not start in time, ToolMissing
    without Slurm's commands, Unreachable if its controller does not respond.
    """
    job = _submit(request)
    try:
        _wait_until_running(job, request)
        options = ["--jobid", job]
        if request.gpus:
            options += [f"--gres=gpu:{request.gpus}"]
        yield Allocation(job=job, nodes=tuple(request.nodes), srun_options=tuple(options))
    finally:
        process.run(["scancel", job], timeout_s=COMMAND_TIMEOUT_S, check=False)


def _submit(request: AllocationRequest) -> str:
    command = [
        "sbatch",
        "--parsable",
        f"--job-name={request.name}",
        f"--nodes={len(request.nodes)}",
        f"--nodelist={','.join(request.nodes)}",
        f"--time={math.ceil(request.time_s / 60)}",
        "--exclusive",
        "--mem=0",  # all memory of the nodes
        "--no-requeue",
        "--output=/dev/null",
    ]
    if request.partition:
        command.append(f"--partition={request.partition}")
    if request.gpus:
        command.append(f"--gres=gpu:{request.gpus}")
    command.append(f"--wrap=exec sleep {math.ceil(request.time_s)}")

    def refusal(message: str) -> InvalidSpec:
        return InvalidSpec(
            f"Slurm refuses the job: {message}.",
            advice="Account, quality of service and the like come from variables: SBATCH_ACCOUNT, "
            "SBATCH_QOS (sbatch(1)).",
        )

    # ID, or ID;CLUSTER where there are several. Warnings of plug-ins may come first.
    return run_slurm(command, refusal).strip().splitlines()[-1].split(";")[0]


def _wait_until_running(job: str, request: AllocationRequest) -> None:
    end = time.monotonic() + request.queue_s
    pause_s = FIRST_PAUSE_S
    while True:
        state, reason = _state(job)
        if state == "RUNNING":
            return
        if state.startswith(ENDED):
            raise Unreachable(
                f"Slurm ended job {job} before it ran: {state} ({reason}).",
                advice=f"`scontrol show job {job}` says more.",
            )
        if time.monotonic() >= end:
            raise TimedOut(
                f"Slurm did not start job {job} within {request.queue_s:g} s: it is {state}, because "
                f"of `{reason}`. The job was canceled.",
                advice="--queue-timeout S waits longer; --nodes N takes fewer nodes.",
            )
        time.sleep(min(pause_s, max(end - time.monotonic(), 0)))
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _state(job: str) -> tuple[str, str]:
    command = ["squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T|%r"]
    output = run_slurm(command, lambda message: Unreachable(f"squeue: {message}."))
    state, _, reason = output.strip().partition("|")
    return state, reason
