"""`provision matrix`: which builds exist, why a request comes to one of them, and locking many."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from provision.cli.options import (
    companion_options,
    context_of,
    dry_run_option,
    mirror_option,
    name_argument,
    print_outcomes,
    query_options,
    relock_option,
    request_options,
    spec_options,
    verb,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from provision.ci import Assignment, Job
    from provision.cli.console import Console


@click.group(invoke_without_command=True)
@query_options
@click.option(
    "--format",
    type=click.Choice(["table", "json", "csv", "markdown", "html"]),
    default="table",
    show_default=True,
    help="Format of the output.",
)
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
    misplaced = []
    for name in options:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            misplaced.append("--json" if name == "as_json" else f"--{name}")
    if misplaced:
        raise click.UsageError(
            f"Write {', '.join(misplaced)} after `{context.invoked_subcommand}`.", context
        )


@verb
def _show(console: Console, envs: Path | None, format: str, **options: Any) -> int:
    from provision.verbs.matrix.matrix import show
    from provision.verbs.matrix.output import table_text

    console.as_json = console.as_json or format == "json"
    table = show(options)
    console.result("matrix", table, "" if console.as_json else table_text(table, format))
    return 0


@matrix.command()
@name_argument
@request_options
@verb
def explain(console: Console, name: str | None, envs: Path | None, **options: Any) -> None:
    """Explain every choice, pin, rule and warning of an environment.

    Also says what was not chosen, and why.
    """
    from provision.core.paths import default_folders
    from provision.verbs.matrix import matrix as command
    from provision.verbs.matrix.output import explanation_lines

    explanation = command.explain(default_folders(envs).envs, name, spec_options(options))
    console.result("matrix-explain", explanation, explanation_lines(explanation))


@matrix.command("lock")
@query_options
@click.option("--newest", is_flag=True, help="Only the newest patch of each minor release.")
@companion_options
@mirror_option
@relock_option
@dry_run_option
@verb
def lock(
    console: Console,
    envs: Path | None,
    dry_run: bool,
    relock: bool,
    newest: bool,
    mirrors: tuple[str, ...],
    **options: Any,
) -> int:
    """Lock every build that fits, each as its own environment.

    A build that cannot be locked does not stop the others.

    \b
    Everything from 2.1 on that driver 535 runs, from conda-forge:
    provision matrix lock --torch '>=2.1' --driver 535 --source conda-forge
    """
    from provision.verbs.matrix.matrix import matrix_requests
    from provision.workflow import batch

    if not any(options.values()):
        raise click.UsageError(
            "Say which builds to lock, e.g. --torch '>=2.4' --driver 535; without options, all of "
            "them would be locked."
        )
    context = context_of(console, envs, {"mirrors": mirrors})
    requests = matrix_requests(options, newest=newest, relock=relock)
    return print_outcomes(console, batch.lock_all(context, requests, dry_run=dry_run))


@matrix.command()
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
@click.option(
    "--across",
    type=click.Choice(["first", "gpu"]),
    default="first",
    show_default=True,
    help="Test each environment on the first runner that fits, or on one of each GPU architecture.",
)
@click.option(
    "--gpus",
    type=click.IntRange(1),
    help="GPUs that each smoke test uses.  [default: all of the runner, up to 8]",
)
@click.option(
    "--image", is_flag=True, help="Also build and test images, on GPU runners with an engine."
)
@click.option(
    "--strict/--no-strict",
    default=True,
    show_default=True,
    help="Whether smoke tests on GPUs fail if something works but is slower than it should be.",
)
@click.option(
    "--install",
    metavar="REQ",
    help=(
        "Where runners get provision: `.`, a wheel in the repository, git+https://HOST/REPO@COMMIT, "
        "or https://HOST/NAME.whl#sha256=HASH.  [required]"
    ),
)
@click.option(
    "--schedule", metavar="CRON", help="When the workflow runs on its own.  [default: 17 4 * * 1]"
)
@click.option(
    "--retention-days",
    metavar="N",
    type=click.IntRange(1, 400),
    default=30,
    show_default=True,
    help="How long the CI service keeps reports and logs.",
)
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
    help="Write nothing; compare with --output, print a diff, and exit with 1 if they differ.",
)
@click.option("--force", is_flag=True, help="Replace a file that was edited by hand.")
@click.option(
    "--jobs",
    is_flag=True,
    help="Print the jobs of today's environments and runners; the workflow's first job does that.",
)
@click.option(
    "--summary",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="With --jobs: append what runs where to FILE, as Markdown.",
)
@dry_run_option
@verb
def ci(
    console: Console,
    envs: Path | None,
    output: Path | None,
    check: bool,
    dry_run: bool,
    jobs: bool,
    summary: Path | None,
    **options: Any,
) -> int:
    """Write a CI workflow that builds and tests the environments of the envs folder.

    It stays valid when environments and runners change: its first job reads them.
    """
    from provision.verbs.matrix import ci as command

    if check and output is None:
        raise click.UsageError("--check compares with a file; name it with --output.")
    if jobs and (check or output is not None):
        raise click.UsageError("--jobs prints to standard output; leave out --output and --check.")
    if summary is not None and not jobs:
        raise click.UsageError("--summary goes with --jobs.")
    request = command.WorkflowRequest(out=output, **options)
    context = context_of(console, envs)
    if jobs:
        assignments = command.assignments(context, request)
        text = command.jobs_text(context, request, assignments)
        if summary is not None:
            command.append_summary(summary, request, assignments)
        console.document("matrix-ci", _document(assignments, text, None), text)
        return 0
    workflow = command.workflow(context, request)
    if check and output is not None:
        diff = command.diff(output, workflow)
        text = diff.rstrip("\n") or f"{output} is current"
        console.result("matrix-ci-check", {"differs": bool(diff), "diff": diff}, text)
        return 1 if diff else 0
    document = _document(workflow.assignments, workflow.text, output)
    if output is None or dry_run:
        console.document("matrix-ci", {**document, "path": None}, workflow.text)
        return 0
    is_changed = command.write(request, workflow)
    lines = []
    for assignment in workflow.assignments:
        for job in assignment.jobs:
            lines.append(f"{job.target.name} ({job.target.platform}): {_place(job)}")
        lines += [f"  {line}" for line in assignment.untested]
    lines.append(f"wrote {output}" if is_changed else f"unchanged: {output}")
    console.result("matrix-ci", document, lines)
    return 0


def _document(assignments: Sequence[Assignment], text: str, output: Path | None) -> dict[str, Any]:
    jobs, untested = [], {}
    for assignment in assignments:
        for job in assignment.jobs:
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
        if assignment.untested:
            untested[assignment.jobs[0].target.name] = assignment.untested
    return {"path": output, "jobs": jobs, "untested": untested, "text": text}


def _place(job: Job) -> str:
    place = job.runner.name if job.runner else "a runner that the service offers"
    ranks = "1 rank" if job.ranks == 1 else f"{job.ranks} ranks"
    return f"{place}, {ranks}" if job.on_gpu else f"{place}, {ranks} on the CPU"
