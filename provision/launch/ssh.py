"""A job on plain hosts: what runs on each, and the command of ssh that starts it. Pure."""

from __future__ import annotations

import shlex

from provision.launch.jobs import JobSpec, PrefixEnvironment

# Variables of the login shell that lead Python or the loader out of the environment.
FOREIGN = ("PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH")


def host_commands(job: JobSpec, gpus: int | None) -> dict[str, list[str]]:
    """For each host the words that start its part from here. They return as soon as the part runs by
    itself. What the host's shell runs is without any syntax of a shell, because login shells differ."""
    environment, hosts = job.environment, job.ssh.hosts
    assert isinstance(environment, PrefixEnvironment)
    start = ["env"]
    for name in FOREIGN:
        start += ["-u", name]
    start += [f"{name}={value}" for name, value in job.variables]
    start += ["PYTHONNOUSERSITE=1", environment.python, "-s", "-m", "provision_runtime", "job"]
    options = job.runtime_options(gpus)
    if job.nodes > 1:
        options += [f"--names={','.join(hosts)}", f"--head={','.join(job.ssh.head)}", "--key-stdin"]
    if job.folder:
        options.insert(0, f"--folder={job.folder}")
    commands = {}
    for number, (host, ssh) in enumerate(hosts.items()):
        part = ["--detach", f"--id={job.name}", f"--node={number}", f"--name={host}"]
        commands[host] = [*ssh, shlex.join([*start, *part, *options, "--", *job.command])]
    return commands
