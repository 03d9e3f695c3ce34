"""`provision matrix`: which builds exist, and why a request comes to one of them."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from provision.cli.options import dry_run_option, none_if_standard_output
from provision.cli.other_tools import GroupWithForeignVerbs
from provision.cli.spec_options import (
    name_argument,
    query_options,
    request_options,
    spec_options,
)
from provision.cli.verb import context_of, verb

if TYPE_CHECKING:
    from provision.ci import Job
    from provision.cli.console import Console


@click.group(cls=GroupWithForeignVerbs, invoke_without_command=True)
@query_options
@click.pass_context
def matrix(context: click.Context, /, **options: Any) -> None:
    """Show which PyTorch builds exist, and what each needs.

    \b
    What runs on a V100 with driver 535:
    provision matrix --driver 535 --gpu V100
    """
    if context.invoked_subcommand is None:
        _show(**options)
        return
    misplaced = [
        f"--{name}"
        for name in options
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
    if misplaced:
        raise click.UsageError(
            f"Write {', '.join(misplaced)} after `{context.invoked_subcommand}`.", context
        )


@verb
def _show(console: Console, envs: Path | None, **options: Any) -> None:
    from provision.cli.console import output_width
    from provision.resolver.table import build_table, parse_query
    from provision.verbs.matrix.output import terminal_lines

    table = build_table(parse_query(options))
    console.result("matrix", table, terminal_lines(table, output_width()))


@matrix.command()
@name_argument
@request_options
@verb
def explain(console: Console, name: str | None, envs: Path | None, **options: Any) -> None:
    """Explain every choice, pin, rule and warning of an environment."""
    from provision.core.paths import default_folders
    from provision.verbs.matrix import matrix as command
    from provision.verbs.matrix.output import explanation_lines

    # The solver and its mirrors take 0.1 s to load, and are rarely needed.
    make_context = partial(context_of, console, envs, options)
    folder = default_folders(envs).envs
    explanation = command.explain(make_context, folder, name, spec_options(options))
    console.result("matrix-explain", explanation, explanation_lines(explanation))


@matrix.command()
@click.argument("runners", required=False, default="runners.yml", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    callback=none_if_standard_output,
    help="File to write: .github/workflows/provision.yml.  [default: standard output]",
)
@click.option("--force", is_flag=True, help="Replace a file that was edited by hand.")
@click.option(
    "--jobs",
    is_flag=True,
    help="Print the jobs of the present environments and runners, as the workflow's first job does.",
)
@dry_run_option
@verb
def ci(
    console: Console,
    runners: Path,
    envs: Path | None,
    output: Path | None,
    force: bool,
    jobs: bool,
    dry_run: bool,
) -> int:
    """Write a GitHub workflow that builds and tests the environments of the envs folder.

    RUNNERS is a file that describes the workflow and the machines that run its jobs; by default, runners.yml.
    The workflow stays valid when environments and runners change: its first job reads them.
    """
    from provision.verbs.matrix import ci as command

    if jobs and output is not None:
        raise click.UsageError("--jobs prints to standard output; leave out --output.")
    context = context_of(console, envs)
    request = command.WorkflowRequest(runners=runners, out=output, force=force)
    workflow = command.workflow(context, request, only_jobs=jobs)
    if jobs:
        # Where GitHub takes the summary of a step from.
        step_summary = os.environ.get("GITHUB_STEP_SUMMARY")
        if step_summary:
            with Path(step_summary).open("a", encoding="utf-8") as file:
                file.write(workflow.summary)
    console.info(workflow.summary)
    is_written = output is not None and not dry_run
    document = {
        "path": output if is_written else None,
        "jobs": [_job(job) for job in workflow.jobs],
        "text": workflow.text,
    }
    if is_written:
        is_changed = command.write(request, workflow)
        line = f"wrote {output}" if is_changed else f"unchanged: {output}"
        console.result("matrix-ci", document, line)
    else:
        console.document("matrix-ci", document, workflow.text)
    return 0


def _job(job: Job) -> dict[str, object]:
    return {
        "environment": job.target.name,
        "platform": job.target.platform,
        "runner": job.runner.name if job.runner else None,
        "gpu": job.on_gpu,
        "ranks": job.ranks,
        "notes": job.notes,
    }
