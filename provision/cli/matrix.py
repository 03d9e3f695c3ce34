"""`provision matrix` and what lies below it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from provision.cli.ci import ci
from provision.cli.options import builds, common, verb

if TYPE_CHECKING:
    from provision.console import Console


@click.group(invoke_without_command=True)
@builds
@click.option(
    "--format", type=click.Choice(["table", "json", "csv", "markdown", "html"]), default="table", show_default=True, help="How it is shown."
)
@common
@click.pass_context
def matrix(context: click.Context, /, **options: Any) -> None:
    """Which PyTorch builds exist: torch, CUDA, source, platform, and what each needs.

    \b
    What runs on a V100 with driver 535:
    provision matrix --driver 535 --gpu V100
    """
    if context.invoked_subcommand is None:
        _show(**options)
    elif given := [name for name in options if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]:
        shown = ", ".join("--json" if name == "as_json" else f"--{name}" for name in given)
        raise click.UsageError(f"Write {shown} after `{context.invoked_subcommand}`, whose options these are.", context)


@verb
def _show(console: Console, envs: Path | None, format: str, **options: Any) -> int:
    from provision.workflows import matrix as workflow

    console.as_json = console.as_json or format == "json"
    found = workflow.show(options)
    console.result(found, "" if console.as_json else workflow.written(found, format))
    return 0


matrix.add_command(ci)
