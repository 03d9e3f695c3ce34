"""`provision matrix ci`: a CI workflow that builds and tests environments."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provision.cli.options import (
    common_options,
    context_of,
    dry_run_option,
    verb,
)
from provision.cli.spec_options import QUERY_OPTIONS, query_options

if TYPE_CHECKING:
    from provision.ci import Job
    from provision.cli.console import Console
    from provision.commands.ci import Workflow


@click.command("ci")
@click.option(
    "--format",
    "format",
    type=click.Choice(["github", "gitlab"]),
    required=True,
    help="The CI service.",
)
@click.option(
    "--runners",
    type=click.Path(path_type=Path),
    default=Path("runners.yml"),
    show_default=True,
    help="File that describes the runners; see docs/ci.md.",
)
@query_options
@click.option("--newest", is_flag=True, help="Only the newest patch of each minor release.")
@click.option(
    "--gpus",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="GPUs that each smoke test uses.",
)
@click.option(
    "--install",
    metavar="REQ",
    help=(
        "What pip installs on a runner; `.` is the checkout.  [default: this version of provision]"
    ),
)
@click.option("--schedule", metavar="CRON", help="When it runs by itself.  [default: 17 4 * * 1]")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help=(
        "File to write: .github/workflows/provision.yml or .gitlab-ci.yml.  [default: "
        "standard output]"
    ),
)
@click.option(
    "--check",
    is_flag=True,
    help="Only compare with --output; print a diff and exit with 1 if it differs.",
)
@click.option("--force", is_flag=True, help="Replace a file that was edited by hand.")
@dry_run_option
@common_options
@verb
def ci(
    console: Console,
    envs: Path | None,
    output: Path | None,
    check: bool,
    dry_run: bool,
    **options: Any,
) -> int:
    """Write a CI workflow that builds and tests environments, each on the first runner that fits.

    \b
    Options that select builds replace the environments of the envs folder:
    provision matrix ci --format github --torch '>=2.6' --source wheels
    """
    from provision.commands import ci as command

    if check and output is None:
        raise click.UsageError("--check compares with a file: name it with --output.")
    build_options = {name: options.pop(name) for name in QUERY_OPTIONS}
    request = command.WorkflowRequest(out=output, builds=build_options, **options)
    workflow = command.workflow(context_of(console, envs), request)
    if check and output is not None:
        diff = command.diff(output, workflow)
        text = diff.rstrip("\n") or f"{output} is current"
        console.result({"differs": bool(diff), "diff": diff}, text)
        return 1 if diff else 0
    if output is None or dry_run:
        console.result(_document(workflow, None), workflow.text.rstrip("\n"))
        return 0
    is_changed = command.write(request, workflow)
    lines = [f"{job.target.name} ({job.target.platform}): {_place(job)}" for job in workflow.jobs]
    lines.append(f"wrote {output}" if is_changed else f"unchanged: {output}")
    console.result(_document(workflow, output), lines)
    return 0


def _document(workflow: Workflow, output: Path | None) -> dict[str, Any]:
    jobs = []
    for job in workflow.jobs:
        jobs.append(
            {
                "environment": job.target.name,
                "platform": job.target.platform,
                "runner": job.runner.name if job.runner else None,
                "gpu": job.on_gpu,
                "ranks": job.ranks,
                "notes": job.notes,
            }
        )
    return {"path": output, "jobs": jobs, "text": workflow.text}


def _place(job: Job) -> str:
    place = job.runner.name if job.runner else "a runner that the service offers"
    return place if job.on_gpu else f"{place}, on the CPU"
