"""How a job is run by one engine: which options each can express, and the values with which the
templates contract-*.j2 write it. Pure.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Literal, get_args

from provision.core import tar
from provision.core.container import PYTHON, STACK, USER, WORKSPACE, names_registry
from provision.core.errors import InvalidSpec
from provision.core.types import Resolution
from provision.launch import kubernetes, slurm
from provision.launch.jobs import HUNG, NAME_LENGTH, REQUEUE_S, ImageEnvironment, JobSpec
from provision.launch.run_spec import (
    SHM_GIB,
    RunOptions,
    docker_arguments,
    run_requirements,
)
from provision.launch.ssh import host_commands

RunFormat = Literal[
    "docker",
    "compose",
    "sbatch",
    "slurm-pyxis",
    "apptainer",
    "kubernetes",
    "jobset",
    "devcontainer",
]
RUN_FORMATS: tuple[RunFormat, ...] = get_args(RunFormat)
# Plain hosts run prefixes only, so `image contract` does not offer them.
JobFormat = RunFormat | Literal["ssh"]
# No job: how to make the file that Apptainer or enroot runs.
FileFormat = Literal["sif", "sqsh"]
FILE_FORMATS = get_args(FileFormat)
SLURM_FORMATS = ("sbatch", "slurm-pyxis", "apptainer")
KUBERNETES_FORMATS = ("kubernetes", "jobset")
PREFIX_FORMATS = ("sbatch", "ssh")
# They take all GPUs of their machine unless told a number; a scheduler must be told one.
LOCAL_FORMATS = ("docker", "compose", "devcontainer", "ssh")
# Runtimes of containers that run as the user who starts them, with the host's shared memory.
USER_RUNTIMES = {"slurm-pyxis": "enroot", "apptainer": "Apptainer"}
PYTHON_OPTIONS = ("-s", "-m", "provision_runtime", "job")


def gpus_per_node(job_format: JobFormat, job: JobSpec, resolution: Resolution) -> int | None:
    """How many GPUs each node gives to the job; None: all that it has."""
    if resolution.cuda is None:
        return 0
    if job.gpus is not None or job_format in LOCAL_FORMATS:
        return job.gpus
    return 1


def check_contract(job_format: JobFormat, job: JobSpec, options: RunOptions) -> None:
    """InvalidSpec for everything that the format cannot express."""
    is_editor, is_local = job_format == "devcontainer", job_format in LOCAL_FORMATS
    runtime = USER_RUNTIMES.get(job_format)
    no_image = "it runs a prefix, no image" if job_format in PREFIX_FORMATS else ""
    shm_mib = 1024 * (options.shm_gib or SHM_GIB)
    lacks_memory = (
        job_format in KUBERNETES_FORMATS
        and job.memory_mib is not None
        and job.memory_mib <= shm_mib
    )
    rules: list[tuple[str, str, object]] = [
        ("a command", "the editor starts its own commands", is_editor and job.command),
        ("several nodes", "an editor uses one node", is_editor and job.nodes > 1),
        ("a time limit", "nothing ends the command then", is_local and job.time_s is not None),
        ("several nodes without a command", "", job.nodes > 1 and not job.command),
        ("requeueing", "there is no queue", is_local and job.requeue),
        ("a user", f"{runtime} runs as the user who submits the job", runtime and options.user),
        ("the size of shared memory", "/dev/shm is the host's", runtime and options.shm_gib),
        (
            f"a memory of {job.memory_mib} MiB",
            f"shared memory counts, {shm_mib} MiB",
            lacks_memory,
        ),
    ]
    of_images = {
        "a mount": options.mounts,
        "a user": options.user,
        "the size of shared memory": options.shm_gib,
        "the name of an image": options.reference,
        "the host's network": options.host_network,
    }
    rules += [(what, no_image, no_image and value) for what, value in of_images.items()]
    for mount in options.mounts:
        name = f"the mount {mount}"
        no_volumes = f"{runtime} mounts folders of the host, and has no named volumes"
        rules.append((name, no_volumes, runtime and mount.is_volume))
        reason = "development containers replace ${...} by a variable, and cannot escape it"
        rules.append((name, reason, is_editor and "${" in str(mount)))
    problems = [f"{what}: {reason}".rstrip(": ") for what, reason, is_broken in rules if is_broken]
    if problems:
        raise InvalidSpec(
            f"{job_format} does not support {'; nor '.join(problems)}.",
            advice="Leave it out, or choose another --format.",
        )


def rank_command(job: JobSpec, gpus: int | None) -> list[str]:
    """The command of a container of one node that starts a job's ranks. gpus: None: all of them."""
    return [PYTHON, *PYTHON_OPTIONS, *job.runtime_options(gpus), "--", *job.command]


def contract_context(
    job_format: JobFormat, resolution: Resolution, job: JobSpec, options: RunOptions
) -> dict[str, object]:
    """The values of the templates contract-*.j2."""
    gpus = gpus_per_node(job_format, job, resolution)
    uses_host_network = options.host_network or (
        job.nodes > 1 and job_format in ("docker", "compose")
    )
    options = dataclasses.replace(options, gpus=gpus, host_network=uses_host_network)
    requirements = run_requirements(resolution, options)
    reasons: dict[str, str] = {need.what: need.reason for need in requirements}
    uid, _, gid = (options.user or USER).partition(":")
    mounts = [(mount.source, mount.target, mount.mode, str(mount)) for mount in options.mounts]
    return {
        "command": list(job.command),
        "default_command": [PYTHON],
        "docker": [(requirement.docker, requirement.reason) for requirement in requirements],
        "environment": job.environment,
        "flags": docker_arguments(resolution, options),
        "gid": int(gid),
        "gpus": gpus,
        "hung_status": HUNG,
        "job": job,
        "kubernetes": _kubernetes_values(job_format, job, gpus),
        "label": job.name,
        "mounts": mounts,
        "name": resolution.spec.name,
        "reason": reasons,
        "reference": _reference(job, options),
        "registry_reference": registry_reference(_reference(job, options)),
        "requeue_s": REQUEUE_S,
        "runtime": [*PYTHON_OPTIONS, *job.runtime_options(gpus)],
        "shm_gib": options.shm_gib or SHM_GIB,
        "slurm": slurm.directives(job, gpus or 0, reasons) if job_format in SLURM_FORMATS else (),
        "ssh": list(host_commands(job, gpus).values()) if job_format == "ssh" else (),
        "stack": STACK,
        "uid": int(uid),
        "user": options.user,
        "volumes": sorted({mount.source for mount in options.mounts if mount.is_volume}),
        "wants": {what: what in reasons for what in ("gpus", "infiniband", "memlock", "network")},
        "workspace": job.folder or WORKSPACE,
    }


def file_context(resolution: Resolution, reference: str) -> dict[str, object]:
    """The values of the templates for FILE_FORMATS."""
    return {
        "epoch": tar.EPOCH,
        "label": dns_label(resolution.spec.name),
        "name": resolution.spec.name,
        "python": PYTHON,
        "reference": reference,
        "workspace": WORKSPACE,
    }


def _reference(job: JobSpec, options: RunOptions) -> str:
    own = job.environment.reference if isinstance(job.environment, ImageEnvironment) else ""
    return options.reference or own


def registry_reference(reference: str) -> str:
    """An image's name with a registry's host; the host is REGISTRY if only an engine knows it."""
    return reference if names_registry(reference) else f"REGISTRY/{reference}"


def _kubernetes_values(job_format: JobFormat, job: JobSpec, gpus: int | None) -> dict[str, object]:
    """What Kubernetes' templates need besides the job: node 0's name for the others, and the whole
    command of a pod, in which $$ is one dollar: $(NAME) is a variable of the container."""
    is_jobset = job_format == "jobset"
    head = kubernetes.head_name(job, is_jobset=is_jobset)
    tokens = list(job.command) or [PYTHON]
    command = [_one_dollar(token) for token in tokens]
    if job.is_distributed:
        # Kubernetes gives each pod its number in JOB_COMPLETION_INDEX.
        starts = [PYTHON, *PYTHON_OPTIONS, f"--wait={kubernetes.WAIT_S}"]
        if job.nodes > 1:
            starts += [f"--id=$(POD_NAMESPACE)/{job.name}", f"--head={head}"]
        command = [*starts, *map(_one_dollar, job.runtime_options(gpus)), "--", *command]
    return {
        "annotations": kubernetes.pod_annotations(job.kubernetes),
        "command": command,
        "gpu_resource": kubernetes.gpu_resource(job.gpu_type),
        "is_volcano": job.kubernetes.scheduler == kubernetes.VOLCANO,
        "key_secret": kubernetes.key_secret(job),
        "kueue": "" if job.kubernetes.scheduler == kubernetes.VOLCANO else job.kubernetes.queue,
        "replicated_job": kubernetes.REPLICATED_JOB,
        "variables": [(name, _one_dollar(value)) for name, value in job.variables],
    }


def _one_dollar(token: str) -> str:
    return token.replace("$", "$$")


def dns_label(name: str) -> str:
    """A name as Kubernetes accepts it for all that belongs to a job; also a good name for a Compose
    service."""
    label = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")
    if not label[:1].isalpha():
        label = f"job-{label}".rstrip("-")
    return label[:NAME_LENGTH].rstrip("-")
