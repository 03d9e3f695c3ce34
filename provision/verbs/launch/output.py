"""What `provision jobs` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from provision.cli.console import table, wrap_line

if TYPE_CHECKING:
    from provision.adapters.kubernetes.jobs import KubernetesJob
    from provision.adapters.slurm.jobs import SlurmJob
    from provision.verbs.launch.jobs import HostJob


def slurm_lines(jobs: Sequence[SlurmJob], width: int | None = None) -> list[str]:
    """A row for each job, then what to do about those that wait. width: of the terminal."""
    if not jobs:
        return []
    rows = [
        (
            job.id,
            job.name,
            job.state,
            str(job.nodes),
            f"{job.time_used}/{job.time_limit}",
            job.where,
        )
        for job in jobs
    ]
    head = ("job", "name", "state", "nodes", "time", "nodes or reason")
    lines = [table(rows, head, width=width)]
    for job in jobs:
        if job.explanation:
            lines += wrap_line(f"{job.id}: {job.explanation}", width)
    return lines


def kubernetes_lines(jobs: Sequence[KubernetesJob], width: int | None = None) -> list[str]:
    if not jobs:
        return []
    rows = [
        (f"k8s:{job.name}", job.namespace, job.state, str(job.nodes), job.reason) for job in jobs
    ]
    head = ("job", "namespace", "state", "nodes", "reason")
    return [table(rows, head, width=width)]


def host_job_lines(jobs: Sequence[HostJob]) -> list[str]:
    if not jobs:
        return []
    rows = [
        (job.id, str(job.node), job.host, job.state, "" if job.status is None else str(job.status))
        for job in sorted(jobs, key=lambda job: (job.id, job.node))
    ]
    return [table(rows, ("job", "node", "host", "state", "status"))]
