"""What the ranks of a launched job do on this node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..hang import model, processes
from ..hang.collect import ProcessSelection, collect

if TYPE_CHECKING:
    from .results import JobRanks

# Of ranks: the id of their job (provision_runtime/job/node.py).
JOB_VARIABLE = "PROVISION_JOB"


def collect_job(id: str) -> JobRanks:
    """A snapshot of each part of a job that runs on this node.

    id: as `provision jobs` has it. A start in Slurm has the number of its restart behind it, one in
    Kubernetes the namespace before it.
    """
    launchers = set()
    for process in processes.rank_processes():
        start = process.environ.get(JOB_VARIABLE, "")
        if id in (start, start.rpartition(".")[0], start.rpartition("/")[2]):
            launchers.add(process.rank.launcher)
    return {"snapshots": [model.to_json(collect(ProcessSelection(pid=pid))) for pid in launchers]}
