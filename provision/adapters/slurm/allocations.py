"""Nodes of Slurm for as long as a command needs them: a job that only waits, in which the command
then runs steps with srun.

sbatch takes what the site requires (account, quality of service) from the variables SBATCH_*.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from provision.adapters.slurm.command import COMMAND_TIMEOUT_S, run_slurm
from provision.adapters.slurm.jobs import submit
from provision.core import process
from provision.core.errors import TimedOut, Unreachable

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 10.0
# squeue(1), JOB STATE CODES.
ENDED = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "REVOKED", "TIMEOUT",
)  # fmt: skip


@contextmanager
def allocate(
    nodes: Sequence[str], *, partition: str, gpus: int, name: str, time_s: float, queue_s: float
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Whole nodes, by name, until the end of the block: the job that holds them, and the options with
    which srun starts a step in it.

    gpus: on each of them. time_s: after which Slurm takes them back. queue_s: how long to wait for
    them. Raises InvalidSpec if Slurm refuses the job, TimedOut if it does not start in time,
    ToolMissing without Slurm's commands, Unreachable if its controller does not respond.
    """
    gres = (f"--gres=gpu:{gpus}",) if gpus else ()
    job = submit(
        f"--job-name={name}",
        f"--nodes={len(nodes)}",
        f"--nodelist={','.join(nodes)}",
        f"--time={math.ceil(time_s / 60)}",
        "--exclusive",
        "--mem=0",  # all memory of the nodes
        "--no-requeue",
        "--output=/dev/null",
        *((f"--partition={partition}",) if partition else ()),
        *gres,
        f"--wrap=exec sleep {math.ceil(time_s)}",
    )
    try:
        _wait_until_running(job, queue_s)
        yield job, ("--jobid", job, *gres)
    finally:
        process.run(["scancel", job], timeout_s=COMMAND_TIMEOUT_S, check=False)


def _wait_until_running(job: str, queue_s: float) -> None:
    end = time.monotonic() + queue_s
    pause_s = FIRST_PAUSE_S
    command = ["squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T|%r"]
    while True:
        output = run_slurm(command, lambda message: Unreachable(f"squeue: {message}."))
        state, _, reason = output.strip().partition("|")
        if state == "RUNNING":
            return
        if state.startswith(ENDED):
            raise Unreachable(
                f"Slurm ended job {job} before it ran: {state} ({reason}).",
                advice=f"`scontrol show job {job}` says more.",
            )
        if time.monotonic() >= end:
            raise TimedOut(
                f"Slurm did not start job {job} within {queue_s:g} s: it is {state}, because of "
                f"`{reason}`. The job was canceled.",
                advice="`queue_s` of nodes.yml is how long to wait; --nodes N takes fewer nodes.",
            )
        time.sleep(min(pause_s, max(end - time.monotonic(), 0)))
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
