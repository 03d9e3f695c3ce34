"""`provision launch` and `provision jobs`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provision.cli.cluster_options import (
    cluster_options,
    inventory_option,
    namespace_option,
    selection_of,
)
from provision.cli.hang_options import hang_options
from provision.cli.options import dry_run_option, mount_option, option_group, time_option
from provision.cli.set_option import set_option
from provision.cli.verb import context_of, verb
from provision.verbs.launch.settings import LaunchSettings

if TYPE_CHECKING:
    from provision.cli.console import Console
    from provision.cluster.inventory import NodeSelection
    from provision.verbs.launch.jobs import Engine

job_options = option_group(
    click.option(
        "--nodes",
        type=click.IntRange(1),
        metavar="N",
        help="Number of nodes.  [default: 1 of a partition or cluster; all of a list of hosts]",
    ),
    click.option(
        "--gpus",
        metavar="[TYPE:]N",
        help="GPUs of each node, like 4 or a100:4.  [default: 1; all on plain hosts]",
    ),
    click.option("--mem", metavar="SIZE", help="Memory of each node, like 64G."),
    time_option,
    click.option(
        "--env",
        "variables",
        multiple=True,
        metavar="NAME=VALUE",
        help="A variable for the command. It is readable in the job: no secrets. Repeatable.",
    ),
    click.option(
        "--requeue",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        metavar="N",
        help=(
            "Start again up to N times after the time limit. The command must continue from its "
            "checkpoint."
        ),
    ),
    click.option(
        "--prefix",
        type=click.Path(path_type=Path),
        metavar="DIR|FILE",
        help="The environment's folder on the nodes; or a pack (FILE.sqsh) on a shared file "
        "system, which each node checks and mounts.  [default: the folder on this machine]",
    ),
    click.option(
        "--image",
        metavar="IMAGE",
        help="An image: a .sqsh file for Pyxis or a .sif file for Apptainer, on a shared file "
        "system; for Kubernetes its name in a registry.",
    ),
    mount_option,
    hang_options,
    namespace_option,
    set_option(LaunchSettings),
)
slurm_options = option_group(
    click.option("--account", metavar="NAME", help="Account to charge."),
    click.option("--qos", metavar="NAME", help="Quality of service."),
    click.option(
        "--constraint", metavar="FEATURES", help="Features of the nodes, like 'nvlink&ib'."
    ),
    click.option(
        "--array",
        metavar="TASKS",
        help="A job for each number, like 0-9%2 (two at once). The command reads "
        "SLURM_ARRAY_TASK_ID.",
    ),
    click.option(
        "--after",
        multiple=True,
        metavar="JOB",
        help="Start when this job has succeeded; never, if it fails. Repeatable.",
    ),
    click.option(
        "--log-dir",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="Folder of the log, which the nodes share.  [default: this folder]",
    ),
    click.option(
        "--force", is_flag=True, help="Submit the job even if no node can run it at present."
    ),
    section="Slurm",
)


@click.command()
@click.argument("name")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@cluster_options
@job_options
@slurm_options
@dry_run_option
@verb
def launch(console: Console, envs: Path | None, dry_run: bool, **options: Any) -> None:
    """Write a job for Slurm, Kubernetes or plain hosts, and submit it.

    Writes an sbatch script, an Indexed Job of Kubernetes, or ssh commands for plain hosts, with
    a reason for each setting. --dry-run prints it and submits nothing.

    COMMAND, after --, runs in the environment NAME. Python code (train.py or -m MODULE) is started
    with torchrun, once for each GPU of each node; anything else once on each node. First the nodes
    compare environment, driver, GPUs and NCCL settings. If one differs, the job ends and names it.
    """
    import sys

    from provision.verbs.launch import launch as command

    selection = selection_of(envs, options)
    del options["on"]
    request = command.LaunchRequest(selection=selection, **options)
    planned = command.plan_job(context_of(console, envs), request, ["provision", *sys.argv[1:]])
    if dry_run:
        result = {"engine": planned.engine, "format": planned.format, "text": planned.text}
        console.document("launch-preview", result, planned.text)
        return
    job = command.submit(planned, selection)
    on = f" {selection.options()}" if job.engine == "hosts" else ""
    lines = [f"submitted: job {job.id}", f"log: provision jobs log {job.id}{on}"]
    if job.log:
        lines[-1] += f" ({job.log})"
    console.result("launch", job, lines)


jobs_options = option_group(
    click.option(
        "--on",
        metavar="NODES",
        help="Nodes of the jobs, as for `launch`. Needed for plain hosts.  [default: this "
        "machine's Slurm and Kubernetes]",
    ),
    inventory_option,
    namespace_option,
)


@click.group()
def jobs() -> None:
    """List, read and cancel launched jobs. Asks only the engine; provision keeps no list of its own."""


@jobs.command("list")
@jobs_options
@verb
def list_(console: Console, envs: Path | None, namespace: str | None, **options: Any) -> int:
    """List the jobs that provision launched.

    Says why a job waits, is held or was requeued.
    """
    from provision.cli.console import output_width, table, wrap_line
    from provision.verbs.launch.jobs import list_jobs

    selection = selection_of(envs, options) if options["on"] else None
    listed, problems = list_jobs(selection, namespace)
    for problem in problems:
        console.warn(problem)
    width = output_width()
    rows = [(job.id, job.name, job.state, str(job.nodes), job.time, job.where) for job in listed]
    head = ("job", "name", "state", "nodes", "time", "nodes or reason")
    lines = [table(rows, head, width=width)] if rows else ["no jobs"]
    for job in listed:
        if job.advice:
            lines += wrap_line(f"{job.id}: {job.advice}", width)
    console.result("jobs-list", {"jobs": listed}, lines)
    return 1 if problems else 0


@jobs.command("log")
@click.argument("job")
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Follow the log until the job ends. The exit code is 1 if the job did not succeed.",
)
@jobs_options
@verb
def log(
    console: Console,
    job: str,
    follow: bool,
    envs: Path | None,
    namespace: str | None,
    **options: Any,
) -> int:
    """Print a job's log.

    JOB is what `launch` printed: a number of Slurm, or k8s:NAME. 12_3 is task 3 of an array. For jobs
    on plain hosts, name the hosts with --on.
    """
    import sys

    from provision.cli.console import for_stream
    from provision.verbs.launch.jobs import show_log

    engine, selection = _engine_of_job(envs, options, job)
    texts = []

    def show(text: str) -> None:
        if console.as_json:
            texts.append(text)
            return
        # A notebook server in the job prints its token there.
        sys.stdout.write(for_stream(text, sys.stdout, shows_token=True))
        sys.stdout.flush()

    if follow and console.as_json:
        raise click.UsageError("--follow cannot be combined with --json.")
    succeeded = show_log(engine, job, selection, namespace, show, console, follow=follow)
    if console.as_json:
        document = {"job": job, "log": "".join(texts)}
        console.result("jobs-log", document, "", shows_token=True)
    return 0 if succeeded else 1


@jobs.command("cancel")
@click.argument("job")
@jobs_options
@verb
def cancel(
    console: Console, job: str, envs: Path | None, namespace: str | None, **options: Any
) -> int:
    """Cancel a job. Ranks that save on USR1 do so first.

    JOB is what `launch` printed. For jobs on plain hosts, name the hosts with --on.
    """
    from provision.verbs.launch import jobs as command

    engine, selection = _engine_of_job(envs, options, job)
    problems = command.cancel(engine, job, selection, namespace)
    for problem in problems:
        console.warn(f"{problem}; the job may still run there")
    where = " where hosts answered" if problems else ""
    document = {"job": job, "canceled": not problems}
    console.result("jobs-cancel", document, f"canceled: {job}{where}")
    return 1 if problems else 0


def _engine_of_job(
    envs: Path | None, options: dict[str, Any], job: str
) -> tuple[Engine, NodeSelection | None]:
    """The engine that knows a job, and the nodes of --on."""
    from provision import launch as stage
    from provision.core.errors import InvalidSpec
    from provision.verbs.launch.jobs import KUBERNETES, engine_of

    if options["on"]:
        selection = selection_of(envs, options)
        return engine_of(selection), selection
    if stage.is_job(job):
        return "slurm", None
    if job.startswith(KUBERNETES):
        return "kubernetes", None
    raise InvalidSpec(
        f"`{job}` is neither the number of a Slurm job nor k8s:NAME.",
        advice="For a job on plain hosts name them with --on.",
    )
