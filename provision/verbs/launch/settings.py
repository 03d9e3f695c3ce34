"""The settings of `provision launch --set`: parts of a job that few change, and engines' own."""

from __future__ import annotations

from provision.cli.set_option import AT_LEAST_ONE, setting
from provision.core.dataclass import frozen


@frozen
class LaunchSettings:
    """None: as the help says. jobset and what follows: Kubernetes has these; sbatch is Slurm's."""

    job_name: str | None = setting(str, "Name of the job.  [default: the command's]")
    ranks: int | None = setting(
        AT_LEAST_ONE, "Ranks of each node.  [default: one for each GPU; 1 without GPUs]"
    )
    cpus: int | None = setting(
        AT_LEAST_ONE, "Cores of each node.  [default: the share that belongs to the GPUs]"
    )
    signal: int | None = setting(
        AT_LEAST_ONE,
        "Send the ranks USR1 this many seconds before the time limit.  [default: 120 with "
        "--requeue, else never]",
    )
    sbatch: tuple[str, ...] = setting(
        str, "Slurm: another option of sbatch, like sbatch=--exclusive. Repeatable.", default=()
    )
    jobset: bool = setting(bool, "Kubernetes: true makes a JobSet.", default=False)
    queue: str | None = setting(
        str, "Kubernetes: queue of Kueue (of Volcano, with scheduler=volcano), for gang scheduling."
    )
    topology: str | None = setting(
        str,
        "Kubernetes: label of nodes, like cloud.provider.com/topology-rack. Kueue places all pods "
        "where it has one value, or with preferred:LABEL tries to.",
    )
    priority: str | None = setting(str, "Kubernetes: priority class.")
    scheduler: str | None = setting(str, "Kubernetes: name of the scheduler, like volcano.")
    keep: str | None = setting(
        str, "Kubernetes: delete the job this long after its end, like 2d.  [default: never]"
    )
    disk: str | None = setting(str, "Kubernetes: ephemeral storage of each node, like 50G.")
    network: tuple[str, ...] = setting(
        str, "Kubernetes: network attachment (Multus), like roce-net. Repeatable.", default=()
    )
    annotation: tuple[str, ...] = setting(
        str, "Kubernetes: annotation of the pods, as KEY=VALUE. Repeatable.", default=()
    )
    rdma: str | None = setting(
        str, "Kubernetes: resource of the RDMA device plugin, as RESOURCE or RESOURCE=N."
    )
    pull_secret: str | None = setting(str, "Kubernetes: secret with the registry's credentials.")
