"""A job: which command, on how many nodes, with how many GPUs, in which environment.

Says nothing of who starts it: `slurm`, `kubernetes` and `ssh` say that in the terms of their
engine, and the templates contract-*.j2 write it down. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from pathlib import PurePosixPath
from typing import Literal

from provision.core.dataclass import frozen
from provision.core.errors import InvalidSpec
from provision.core.types import Resolution

# The ranks have this long from the signal to the end of the job, unless --set signal says otherwise.
SIGNAL_S = 120
# The part of that which is left for requeueing, after the ranks' part.
REQUEUE_S = 15
MIN_SIGNAL_S = 2 * REQUEUE_S
ALL = "all"
OnHang = Literal["report", "end", "requeue"]
# The default of `provision_runtime job`; and its status after --on-hang end or requeue.
HANG_AFTER_S = 300
HUNG = 79
# Programs that start ranks themselves: launch would have to guess what they do.
_LAUNCHERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
# RFC 1035, the strictest of the rules for names of Kubernetes: a Service begins with a letter.
NAME = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
NAME_LENGTH = 50  # pods append the number of the node, JobSets more


@frozen
class PrefixEnvironment:
    """A prefix that every node has at the same path."""

    path: PurePosixPath
    kind: Literal["prefix"] = "prefix"

    @property
    def python(self) -> str:
        return str(self.path / "bin" / "python")


@frozen
class SquashfsEnvironment:
    """A packed prefix, which each node mounts while the job runs. sha256: of the file."""

    file: PurePosixPath
    sha256: str
    kind: Literal["squashfs"] = "squashfs"


@frozen
class ImageEnvironment:
    """An image. reference: its name in a registry or engine, or the absolute path of its file
    (`.sqsh` for Pyxis, `.sif` for Apptainer). sha256: of the file."""

    reference: str
    sha256: str | None = None
    kind: Literal["image"] = "image"


Environment = PrefixEnvironment | SquashfsEnvironment | ImageEnvironment


@frozen
class SlurmOptions:
    """What only Slurm has. exclude: nodes of the partition that are not meant. array: numbers of
    tasks, each a job of its own. after: ids of jobs that must succeed first. more: options of sbatch,
    as the user wrote them."""

    partition: str | None = None
    exclude: str = ""
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    array: str | None = None
    after: tuple[str, ...] = ()
    more: tuple[str, ...] = ()


@frozen
class NodeRequirement:
    """One term of a node selector. operator: In, NotIn, Exists or DoesNotExist."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


@frozen
class KubernetesOptions:
    """What only Kubernetes has.

    queue: a LocalQueue of Kueue, or a queue of Volcano. topology: a label of nodes; Kueue places all
    pods where it has one value. priority: a PriorityClass. ttl_s: after which a job that has ended is
    deleted. disk_mib: ephemeral storage of a node's pod. rdma: a resource of the cluster's RDMA
    device plugin, with how many of it a node's pod gets. secret: names the registry's credentials.
    networks: attachments of Multus. annotations: of the pods.
    """

    namespace: str | None = None
    queue: str | None = None
    topology: str | None = None
    priority: str | None = None
    scheduler: str | None = None
    ttl_s: int | None = None
    disk_mib: int | None = None
    networks: tuple[str, ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    rdma: tuple[str, int] | None = None
    secret: str | None = None
    nodes: tuple[NodeRequirement, ...] = ()


@frozen
class SshOptions:
    """What only plain hosts have. hosts: their names in the order of the nodes' numbers, and the
    command of ssh that runs a shell command there. head: names and addresses at which the others may
    find node 0."""

    hosts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    head: tuple[str, ...] = ()


@frozen
class JobSpec:
    """name: what the engine calls the job, a DNS label. gpus: for each node; None: as many as it
    has, or one where a scheduler must be told a number. ranks: for each node; None: one for each
    GPU. requeue: how often the job may continue after its time limit. signal_s: seconds before the
    limit at which the ranks are told to save; None: never. folder: where the command starts.
    hang_after_s: for how long all ranks must do nothing before on_hang; 0: never. gpu_type: as the
    engine names it. memory_mib: of each node; 0: all of it. variables: names and values for the
    command. log_folder: where Slurm writes the log, instead of `folder`.
    """

    name: str
    command: tuple[str, ...] = ()
    environment: Environment
    nodes: int = 1
    gpus: int | None = None
    gpu_type: str = ""
    ranks: int | None = None
    cpus: int | None = None
    memory_mib: int | None = None
    time_s: int | None = None
    requeue: int = 0
    signal_s: int | None = None
    lock: str | None = None
    variables: tuple[tuple[str, str], ...] = ()
    folder: str | None = None
    log_folder: str | None = None
    hang_after_s: int = HANG_AFTER_S
    on_hang: OnHang = "report"
    slurm: SlurmOptions = field(default_factory=SlurmOptions)
    kubernetes: KubernetesOptions = field(default_factory=KubernetesOptions)
    ssh: SshOptions = field(default_factory=SshOptions)

    @property
    def has_ranks(self) -> bool:
        """Whether the command is Python code, which torchrun starts once for each GPU."""
        return bool(self.command) and is_python_code(self.command[0])

    @property
    def is_distributed(self) -> bool:
        """Whether `provision_runtime job` starts the command, rather than the engine itself."""
        return self.has_ranks or self.nodes > 1

    def runtime_options(self, gpus: int | None) -> list[str]:
        """The options of `provision_runtime job` that are the same on every node and engine.

        gpus: None: all that are visible.
        """
        options = []
        if self.nodes > 1:
            options.append(f"--nodes={self.nodes}")
        if self.has_ranks:
            options.append(f"--ranks={self.ranks or ('gpus' if gpus is None else max(1, gpus))}")
        if gpus:
            options.append(f"--gpus={gpus}")
        if self.lock:
            options.append(f"--lock={self.lock}")
        if self.signal_s is not None:
            options.append("--saves")
        if self.hang_after_s != HANG_AFTER_S:
            options.append(f"--hang-after={self.hang_after_s}")
        if self.on_hang != "report":
            options.append(f"--on-hang={self.on_hang}")
        return options


def is_python_code(token: str) -> bool:
    return token.endswith(".py") or token == "-m"


def check_job(job: JobSpec, resolution: Resolution) -> None:
    """InvalidSpec with everything that is wrong whatever engine runs the job."""
    problems = []
    if not NAME.fullmatch(job.name) or len(job.name) > NAME_LENGTH:
        problems.append(
            f"a job cannot be named {job.name!r} (a letter, then letters, digits and -, "
            f"at most {NAME_LENGTH} characters, lower case)"
        )
    if resolution.cuda is None and job.gpus:
        problems.append("the environment is built for the CPU, and the job has GPUs")
    if job.command and job.command[0].rpartition("/")[2] in _LAUNCHERS:
        problems.append(
            f"`{job.command[0]}` starts ranks itself, and so does launch: write the script alone"
        )
    if job.command == ("-m",):
        problems.append("-m needs the name of a module")
    if job.ranks is not None and not job.has_ranks:
        problems.append("--set ranks is for Python code (train.py or -m MODULE)")
    if not job.has_ranks and (job.on_hang, job.hang_after_s) != ("report", HANG_AFTER_S):
        problems.append("--hang-after and --on-hang are for Python code (train.py or -m MODULE)")
    if job.on_hang == "requeue" and not job.requeue:
        problems.append("--on-hang requeue needs --requeue N, Slurm's number of restarts")
    problems += _time_problems(job)
    if problems:
        raise InvalidSpec(f"This job cannot run: {'; '.join(problems)}.")


def _time_problems(job: JobSpec) -> list[str]:
    problems = []
    if job.signal_s is not None and job.signal_s < MIN_SIGNAL_S:
        problems.append(
            f"--set signal={job.signal_s} leaves no time to save: at least {MIN_SIGNAL_S} s"
        )
    if job.time_s is not None and job.signal_s is not None and job.time_s <= 2 * job.signal_s:
        problems.append(
            f"of a time limit of {job.time_s} s, the last {job.signal_s} s are for saving, "
            "which leaves less for training than for saving"
        )
    if job.signal_s is not None and not job.command:
        problems.append("without a command nothing saves a checkpoint")
    return problems
