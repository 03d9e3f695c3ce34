"""A job on plain hosts: what runs on each, and the command of ssh that starts it. Pure."""

from __future__ import annotations

import shlex

from provision.core.dataclass import dataclass
from provision.launch.jobs import JobSpec, PrefixEnvironment

# Variables of the login shell that lead Python or the loader out of the environment.
FOREIGN = ("PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH")


@dataclass(frozen=True, kw_only=True)
class HostCommand:
    """remote: what the host's shell runs. ssh: the words that run it there from here."""

    host: str
    node: int
    remote: str
    ssh: tuple[str, ...]


def host_commands(job: JobSpec, gpus: int | None) -> tuple[HostCommand, ...]:
    """One for each host. It returns as soon as the host's part of the job runs by itself."""
    environment = job.environment
    assert isinstance(environment, PrefixEnvironment)
    commands = []
    for number, host in enumerate(job.ssh.hosts):
        remote = _remote_command(job, environment, number, host.name, gpus)
        commands.append(
            HostCommand(host=host.name, node=number, remote=remote, ssh=(*host.ssh, remote))
        )
    return tuple(commands)


def _remote_command(
    job: JobSpec, environment: PrefixEnvironment, number: int, host: str, gpus: int | None
) -> str:
    """One command without any syntax of a shell, because login shells differ."""
    command = ["env"]
    for name in FOREIGN:
        command += ["-u", name]
    command += [f"{name}={value}" for name, value in job.variables]
    command += ["PYTHONNOUSERSITE=1", environment.python, "-s", "-m", "provision_runtime", "job"]
    command += ["--detach", f"--id={job.name}", f"--node={number}", f"--name={host}"]
    if job.folder:
        command.append(f"--folder={job.folder}")
    command += job.runtime_options(gpus)
    if job.nodes > 1:
        command.append(f"--names={','.join(target.name for target in job.ssh.hosts)}")
        command.append(f"--head={','.join(job.ssh.head)}")
        command.append("--key-stdin")
    return shlex.join([*command, "--", *job.command])
