"""What the ranks of a launched job do on this node."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..hang import model
from ..hang.collect import Selection, collect

if TYPE_CHECKING:
    from .results import JobRanks

# Of the process that starts the ranks: the job's id (provision_runtime/job/node.py).
JOB_VARIABLE = "PROVISION_JOB"
LAUNCHER = b"job-agent"


def collect_job(id: str) -> JobRanks:
    """A snapshot of each part of a job that runs on this node."""
    return {"snapshots": [model.to_json(collect(Selection(pid=pid))) for pid in launchers(id)]}


def launchers(job: str) -> list[int]:
    """The processes of this node that started ranks of a job.

    job: as `provision jobs` has it. A start in Slurm has the number of its restart behind it, one in
    Kubernetes the namespace before it.
    """
    pids = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                if LAUNCHER not in file.read().split(b"\0"):
                    continue
            with open(f"/proc/{name}/environ", "rb") as file:
                entries = file.read().decode(errors="replace").split("\0")
        except OSError:  # it has ended, or is another user's
            continue
        ids = [entry.partition("=")[2] for entry in entries if entry.startswith(f"{JOB_VARIABLE}=")]
        if ids and job in (ids[0], ids[0].rpartition(".")[0], ids[0].rpartition("/")[2]):
            pids.append(int(name))
    return pids
