"""Whether a job of Slurm can ever run, by what sinfo says now: a queue keeps jobs for ever that no
node can start.
"""

from __future__ import annotations

from collections.abc import Sequence

from provision import launch
from provision.adapters.slurm.nodes import Partition, SlurmNode
from provision.cluster.folding import fold_equal
from provision.core.errors import InvalidSpec


def check_feasible(job: launch.JobSpec, partition: Partition, nodes: Sequence[SlurmNode]) -> None:
    """InvalidSpec if nothing but a change of the cluster would let the job run. nodes: of --on."""
    problems = []
    name = f"the partition {job.slurm.partition}"
    if partition.state not in ("up", ""):
        problems.append(f"{name} is {partition.state}")
    try:
        longest_s = launch.parse_duration(partition.max_time)
    except InvalidSpec:  # infinite
        longest_s = None
    if longest_s is not None and job.time_s is not None and job.time_s > longest_s:
        problems.append(f"--time is more than the {partition.max_time} of {name}")
    if partition.max_nodes.isdigit() and job.nodes > int(partition.max_nodes):
        problems.append(f"--nodes {job.nodes} is more than the {partition.max_nodes} of {name}")
    if partition.min_nodes.isdigit() and job.nodes < int(partition.min_nodes):
        problems.append(f"--nodes {job.nodes} is less than the {partition.min_nodes} of {name}")
    obstacles = {node.name: _obstacle(job, node) for node in nodes}
    unfit = {name: obstacle for name, obstacle in obstacles.items() if obstacle}
    able = len(nodes) - len(unfit)
    if job.nodes > able:
        reasons = "; ".join(f"{names}: {reason}" for names, reason in fold_equal(unfit))
        problems.append(f"of the {len(nodes)} nodes of --on, {able} can run it ({reasons})")
    if problems:
        raise InvalidSpec(
            f"This job would wait forever: {'; '.join(problems)}.",
            advice="Ask for less or for other nodes. --force submits it anyway.",
        )


def _obstacle(job: launch.JobSpec, node: SlurmNode) -> str:
    """Why the node can run no part of the job; empty if it can. Slurm itself refuses a job for which no
    node has the cores, the memory or the features."""
    if not node.starts_jobs:
        reason = f" ({node.reason})" if node.reason else ""
        return f"{node.state}{reason}"
    gpus = node.gpus_by_type.get(job.gpu_type, 0) if job.gpu_type else node.gpus
    return f"{gpus} x {job.gpu_type or 'GPU'}" if (job.gpus or 0) > gpus else ""
