"""`provision matrix` and what lies below it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from provision.cli.ci import ci
from provision.cli.options import (
    asked,
    common,
    context_of,
    dry,
    mirrored,
    name_argument,
    relock_option,
    show_outcomes,
    verb,
)
from provision.cli.spec_options import companion_options, query_options, request_options

if TYPE_CHECKING:
    from provision.cli.console import Console


@click.group(invoke_without_command=True)
@query_options
@click.option(
    "--format",
    type=click.Choice(["table", "json", "csv", "markdown", "html"]),
    default="table",
    show_default=True,
    help="How it is shown.",
)
@common
@click.pass_context
def matrix(context: click.Context, /, **chosen: Any) -> None:
    """Which PyTorch builds exist: torch, CUDA, source, platform, and what each needs.

    \b
    What runs on a V100 with driver 535:
    provision matrix --driver 535 --gpu V100
    """
    if context.invoked_subcommand is None:
        _show(**chosen)
    elif given := [
        name for name in chosen if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]:
        shown = ", ".join("--json" if name == "as_json" else f"--{name}" for name in given)
        raise click.UsageError(
            f"Write {shown} after `{context.invoked_subcommand}`, whose options these are.", context
        )


@verb
def _show(console: Console, envs: Path | None, format: str, **chosen: Any) -> int:
    from provision.commands import matrix as workflow

    console.as_json = console.as_json or format == "json"
    found = workflow.show(chosen)
    console.result(found, "" if console.as_json else workflow.written(found, format))
    return 0


@matrix.command()
@name_argument
@request_options
@common
@verb
def explain(console: Console, name: str | None, envs: Path | None, **options: Any) -> None:
    """Say why an environment is what it is: every choice, pin, rule and warning, and what was not chosen.

    NAME is an environment with a spec.yml in the envs folder; options override what it says.
    """
    from provision.cli.console import explanation_lines
    from provision.commands import matrix as workflow
    from provision.core.paths import default_folders

    found = workflow.explain(default_folders(envs).envs, name, asked(options))
    console.result(found, explanation_lines(found))


@matrix.command("lock")
@query_options
@click.option("--newest", is_flag=True, help="Of each minor release only its newest patch.")
@companion_options
@mirrored
@relock_option
@dry
@common
@verb
def lock(
    console: Console,
    envs: Path | None,
    dry_run: bool,
    mirrors: tuple[str, ...],
    alias: str | None,
    relock: bool,
    newest: bool,
    **chosen: Any,
) -> int:
    """Lock every build that fits, each as an environment of its own; one that fails does not stop the others.

    \b
    Everything from 2.1 on that a driver 535 runs, from conda-forge:
    provision matrix lock --torch '>=2.1' --driver 535 --source conda-forge
    """
    from provision.commands import batch

    if not any(chosen.values()):
        raise click.UsageError(
            "Say which builds, e.g. --torch '>=2.4' --driver 535: all of the table would be locked."
        )
    context = context_of(console, envs, mirrors=mirrors, alias=alias)
    requests = batch.matrix_requests(chosen, newest=newest, relock=relock)
    return show_outcomes(console, batch.lock_all(context, requests, dry_run=dry_run))


matrix.add_command(ci)
