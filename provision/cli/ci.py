"""`provision matrix ci`: options in, a workflow file out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provision.cli.options import common, context_of, dry, verb
from provision.cli.spec_options import QUERY_OPTIONS, query_options

if TYPE_CHECKING:
    from provision.ci import Job
    from provision.cli.console import Console
    from provision.commands.ci import Workflow


@click.command("ci")
@click.option(
    "--format", "format", type=click.Choice(["github", "gitlab"]), required=True, help="Whose CI."
)
@click.option(
    "--runners",
    type=click.Path(path_type=Path),
    default=Path("runners.yml"),
    show_default=True,
    help="The runners: docs/ci.md describes the file.",
)
@query_options
@click.option("--newest", is_flag=True, help="Of each minor release only its newest patch.")
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
    help="What pip installs on a runner; `.` is the checkout.  [default: provision of this version]",
)
@click.option("--schedule", metavar="CRON", help="When it runs by itself.  [default: 17 4 * * 1]")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Write it there: .github/workflows/provision.yml, .gitlab-ci.yml.  [default: show it]",
)
@click.option(
    "--check",
    is_flag=True,
    help="Only compare with --output. Exit code 1, and a diff, if it differs.",
)
@click.option("--force", is_flag=True, help="Replace a file that was edited by hand.")
@dry
@common
@verb
def ci(
    console: Console,
    envs: Path | None,
    output: Path | None,
    check: bool,
    dry_run: bool,
    **options: Any,
) -> int:
    """A CI workflow that builds and smoke-tests environments, each on the first of a lab's runners that fits it.

    \b
    Those of the envs folder, or, with options that say which, builds of the table:
    provision matrix ci --format github --torch '>=2.6' --source wheels
    """
    from provision.commands import ci as workflow

    if check and output is None:
        raise click.UsageError("--check compares with a file: name it with --output.")
    request = workflow.WorkflowRequest(
        out=output, builds={name: options.pop(name) for name in QUERY_OPTIONS}, **options
    )
    made = workflow.workflow(context_of(console, envs), request)
    if check and output is not None:
        difference = workflow.diff(output, made)
        console.result(
            {"differs": bool(difference), "diff": difference},
            difference.rstrip("\n") or f"{output} is as it would be made",
        )
        return 1 if difference else 0
    if output is None or dry_run:
        console.result(_told(made, None), made.text.rstrip("\n"))
        return 0
    written = workflow.write(request, made)
    lines = [f"{job.target.name} ({job.target.platform}): {_place(job)}" for job in made.jobs]
    console.result(
        _told(made, output), [*lines, f"{'wrote' if written else 'as it was:'} {output}"]
    )
    return 0


def _told(made: Workflow, output: Path | None) -> dict[str, Any]:
    jobs = [
        {
            "environment": job.target.name,
            "platform": job.target.platform,
            "runner": job.runner.name if job.runner else None,
            "gpu": job.on_gpu,
            "ranks": job.ranks,
            "notes": job.notes,
        }
        for job in made.jobs
    ]
    return {"path": output, "jobs": jobs, "text": made.text}


def _place(job: Job) -> str:
    where = job.runner.name if job.runner else "a runner that the service offers"
    return where if job.on_gpu else f"{where}, on the CPU"
