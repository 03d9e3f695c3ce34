"""`provision launch` and `provision jobs`."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import click

from provision.cli.cluster_options import (
    cluster_options,
    inventory_option,
    namespace_option,
    selection_of,
)
from provision.cli.hang_options import hang_options, parse_hang_options
from provision.cli.options import dry_run_option, mount_option, option_group, time_option
from provision.cli.set_option import set_option
from provision.cli.verb import context_of, verb
from provision.verbs.launch.settings import LaunchSettings

if TYPE_CHECKING:
    from provision.cli.console import Console
    from provision.verbs.launch.launch import LaunchRequest

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
    click.option(
        "-o",
        "--output",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="Also keep the script or manifest in this file.",
    ),
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
def launch(
    console: Console,
    name: str,
    envs: Path | None,
    output: Path | None,
    dry_run: bool,
    **options: Any,
) -> None:
    """Write a job for Slurm, Kubernetes or plain hosts, and submit it.

    Writes an sbatch script, an Indexed Job of Kubernetes, or a plan for plain hosts over ssh, with
    a reason for each setting. --dry-run prints it and submits nothing.

    COMMAND, after --, runs in the environment NAME. Python code (train.py or -m MODULE) is started
    with torchrun, once for each GPU of each node; anything else once on each node. First the nodes
    compare environment, driver, GPUs and NCCL settings. If one differs, the job ends and names it.
    """
    import sys

    from provision.core.atomic import atomic_write
    from provision.verbs.launch import launch as command

    request = _request(name, envs, options, dry_run)
    context = context_of(console, envs)
    if request.selection.is_assumed:
        console.warn(
            f"the engine of `{options['on']}` does not answer here: its nodes, their GPUs and cores "
            "are not checked, and settings that depend on them are left out"
        )
    planned = command.plan_job(context, request, ["provision", *sys.argv[1:]])
    if output is not None:
        atomic_write(output, planned.text)
        console.info(f"wrote {output}")
    if dry_run:
        result = {"engine": planned.engine, "format": planned.format, "text": planned.text}
        console.document("launch-preview", result, planned.text)
        return
    job = command.submit(planned)
    on = f" --on '{request.selection.text}'" if job.engine == "hosts" else ""
    lines = [f"submitted: job {job.id}", f"log: provision jobs log {job.id}{on}"]
    if job.log:
        lines[-1] += f" ({job.log})"
    console.result("launch", job, lines)


def _request(name: str, envs: Path | None, options: dict[str, Any], dry_run: bool) -> LaunchRequest:
    from provision import launch as stage
    from provision.core.errors import InvalidSpec
    from provision.verbs.launch.launch import LaunchRequest

    time, memory, settings = options["time"], options["mem"], options["settings"]
    gpu_type, gpus = stage.parse_gpus(options["gpus"]) if options["gpus"] else ("", None)
    for earlier in options["after"]:
        if not stage.is_job(earlier):
            raise InvalidSpec(
                f"--after {earlier}: not a job of Slurm.", advice="Write 123 or 123_4."
            )
    hang_after_s, on_hang = parse_hang_options(options["hang_after"], options["on_hang"])
    job = stage.JobSpec(
        name="",
        command=options["command"],
        environment=stage.PrefixEnvironment(path=PurePosixPath()),
        gpus=gpus,
        gpu_type=gpu_type,
        ranks=settings.ranks,
        cpus=settings.cpus,
        memory_mib=stage.parse_memory(memory) if memory else None,
        variables=stage.parse_variables(options["variables"]),
        time_s=stage.parse_duration(time) if time else None,
        requeue=options["requeue"],
        signal_s=settings.signal,
        hang_after_s=hang_after_s,
        on_hang=on_hang,
        slurm=stage.SlurmOptions(
            account=options["account"],
            qos=options["qos"],
            constraint=options["constraint"],
            array=stage.check_array(options["array"]) if options["array"] else None,
            after=options["after"],
            more=settings.sbatch,
        ),
    )
    return LaunchRequest(
        name=name,
        inventory=options["inventory"],
        selection=selection_of(envs, options, (options["nodes"] or 1) if dry_run else 0),
        nodes=options["nodes"],
        job=job,
        log_folder=options["log_dir"],
        is_forced=options["force"],
        prefix=options["prefix"],
        image=options["image"],
        namespace=options["namespace"],
        settings=settings,
        options=stage.RunOptions(mounts=tuple(map(stage.parse_mount, options["mounts"]))),
    )


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
    from provision.cli.console import output_width
    from provision.verbs.launch import jobs as command
    from provision.verbs.launch.output import host_job_lines, kubernetes_lines, slurm_lines

    kind, selection = _jobs_engine(envs, options)
    result: dict[str, Any] = {}
    lines: list[str] = []
    width = output_width()
    problems: list[str] = []
    if kind == "hosts":
        result["hosts"], problems = command.list_on_hosts(selection)
        lines += host_job_lines(result["hosts"])
    if kind == "slurm" or (kind is None and command.has_command("squeue")):
        result["slurm"] = command.list_slurm()
        lines += slurm_lines(result["slurm"], width)
    if kind == "kubernetes" or (kind is None and command.has_command("kubectl") and not result):
        result["kubernetes"] = command.list_kubernetes(selection, namespace)
        lines += kubernetes_lines(result["kubernetes"], width)
    for problem in problems:
        console.warn(problem)
    console.result("jobs-list", result, lines or ["no jobs"])
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
    from provision.verbs.launch import jobs as command
    from provision.verbs.launch.follow import follow_log

    kind, selection = _jobs_engine(envs, options, job)
    if follow:
        if console.as_json:
            raise click.UsageError("--follow cannot be combined with --json.")

        def show(text: str) -> None:
            sys.stdout.write(for_stream(text, sys.stdout, shows_token=True))
            sys.stdout.flush()

        return 0 if follow_log(kind, job, selection, namespace, show, console) else 1
    text, problems = command.read_log(kind, job, selection, namespace)
    for problem in problems:
        console.warn(problem)
    # A notebook server in the job prints its token there.
    document = {"job": job, "log": text}
    console.result("jobs-log", document, text.rstrip("\n"), shows_token=True)
    return 1 if problems else 0


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

    kind, selection = _jobs_engine(envs, options, job)
    problems = command.cancel(kind, job, selection, namespace)
    for problem in problems:
        console.warn(f"{problem}; the job's part there may go on")
    where = " where hosts answered" if problems else ""
    document = {"job": job, "canceled": not problems}
    console.result("jobs-cancel", document, f"canceled: {job}{where}")
    return 1 if problems else 0


def _jobs_engine(envs: Path | None, options: dict[str, Any], job: str | None = None) -> Any:
    """The engine that knows the job, and the nodes of --on; without both, every engine here."""
    from provision import launch as stage
    from provision.core.errors import InvalidSpec
    from provision.verbs.launch import jobs as command

    if options["on"]:
        selection = selection_of(envs, options)
        return command.engine_of(selection), selection
    if job is None:
        command.require_engine()
        return None, None
    if stage.is_job(job):
        return "slurm", None
    if job.startswith("k8s:"):
        return "kubernetes", None
    raise InvalidSpec(
        f"`{job}` is neither the number of a Slurm job nor k8s:NAME.",
        advice="For a job on plain hosts name them with --on.",
    )
