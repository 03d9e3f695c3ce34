"""Which rank this process is, by the environment variables of torchrun, Slurm or our launcher."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from .options import UsageError

# Below the range from which Linux assigns ports (32768), and different for each job and step.
SLURM_PORTS = (20000, 10000)
# `2(x3),1`: two tasks on each of three nodes, and one on the fourth (sbatch(1)).
TASKS_PER_NODE = re.compile(r"(\d+)(?:\(x(\d+)\))?")
REQUIRED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
# Set by our launcher to the reading of the monotonic clock (one for all processes of a host) at
# which the whole run ends.
ENDS_AT = "PROVISION_SMOKE_ENDS_AT"
JOB = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID", ENDS_AT)


@dataclass(frozen=True)
class RankEnv:
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int | None
    master_addr: str
    master_port: int
    host: str
    # torchrun's agent hosts the store itself; then no rank may.
    store_is_hosted: bool
    # torchrun may restart all ranks; the store then still has the keys of the previous attempt.
    attempt: str
    ends_at: float | None
    # The name that torchrun or Slurm gave this run; empty if neither did.
    job: str = ""

    @property
    def run(self) -> str:
        """Distinguishes this run from others that use the same folder."""
        return f"{self.job}/{self.master_addr}:{self.master_port}/{self.attempt}"

    @property
    def launched(self) -> bool:
        """Whether our own launcher started this rank."""
        return self.ends_at is not None

    @property
    def ranks_per_core(self) -> float:
        """On this host, before the ranks have met."""
        return (self.local_world_size or self.world_size) / len(os.sched_getaffinity(0))

    @property
    def all_local(self) -> bool:
        return self.local_world_size == self.world_size


def from_environment(environment: Mapping[str, str] | None = None) -> RankEnv | None:
    """None if no launcher started this process as a rank. Raises UsageError if variables are
    missing or wrong."""
    variables = os.environ if environment is None else environment
    if "RANK" not in variables:
        variables = {**variables, **slurm_task(variables)}
    if "RANK" not in variables:
        return None
    missing = [name for name in REQUIRED if name not in variables]
    if missing:
        raise UsageError(
            f"RANK is set, but {', '.join(missing)} is not: "
            f"set all of {', '.join(REQUIRED)}, or none"
        )
    local_world_size = None
    if "LOCAL_WORLD_SIZE" in variables:
        local_world_size = _number(variables, "LOCAL_WORLD_SIZE")
    return RankEnv(
        rank=_number(variables, "RANK"),
        world_size=_number(variables, "WORLD_SIZE"),
        local_rank=_number(variables, "LOCAL_RANK"),
        local_world_size=local_world_size,
        master_addr=variables["MASTER_ADDR"],
        master_port=_number(variables, "MASTER_PORT"),
        host=socket.gethostname(),
        store_is_hosted=variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=variables.get("TORCHELASTIC_RESTART_COUNT", "0"),
        ends_at=float(variables[ENDS_AT]) if ENDS_AT in variables else None,
        job=" ".join(variables[name] for name in JOB if name in variables),
    )


def slurm_task(variables: Mapping[str, str]) -> dict[str, str]:
    """torchrun's variables for a task that srun started as one of several; empty for others.

    A batch script has SLURM_PROCID too, but no SLURM_STEP_NUM_TASKS. What the user set stays.
    """
    tasks = variables.get("SLURM_STEP_NUM_TASKS", "")
    if not tasks.isdigit() or int(tasks) < 2:
        return {}
    per_node = tasks_per_node(variables.get("SLURM_STEP_TASKS_PER_NODE", ""))
    node = _number(variables, "SLURM_NODEID")
    first, count = SLURM_PORTS
    job, step = _number(variables, "SLURM_JOB_ID"), _number(variables, "SLURM_STEP_ID")
    derived = {
        "RANK": variables["SLURM_PROCID"],
        "WORLD_SIZE": tasks,
        "LOCAL_RANK": variables["SLURM_LOCALID"],
        "MASTER_ADDR": first_host(variables["SLURM_STEP_NODELIST"]),
        "MASTER_PORT": str(first + (job * 16 + step) % count),
    }
    if node < len(per_node):
        derived["LOCAL_WORLD_SIZE"] = str(per_node[node])
    return {name: variables.get(name, value) for name, value in derived.items()}


def tasks_per_node(text: str) -> list[int]:
    counts = []
    for tasks, nodes in TASKS_PER_NODE.findall(text):
        counts += [int(tasks)] * int(nodes or 1)
    return counts


def first_host(nodes: str) -> str:
    """Of a list as Slurm writes it, `n[01-04,7],m2`: n01. Task 0 runs there."""
    first = re.match(r"([^,\[]*)(?:\[([^\]]*)\]([^,\[]*))?", nodes)
    assert first is not None
    prefix, ranges, suffix = first.groups()
    if ranges is None:
        return str(prefix)
    number = re.split(r"[-,]", ranges)[0]
    return f"{prefix}{number}{suffix}"


def _number(variables: Mapping[str, str], name: str) -> int:
    if not variables.get(name, "").isdigit():
        raise UsageError(f"{name}={variables.get(name)!r} in the environment is not a number")
    return int(variables[name])
