"""`provision matrix`: which builds exist, why a request comes to one of them, and locking many."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from provision.cli.ci import ci
from provision.cli.options import (
    common_options,
    context_of,
    dry_run_option,
    mirror_options,
    name_argument,
    print_outcomes,
    relock_option,
    spec_options,
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
    help="Format of the output.",
)
@common_options
@click.pass_context
def matrix(context: click.Context, /, **options: Any) -> None:
    """Show which PyTorch builds exist: torch, CUDA, source, platform, and what each needs.

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
    from provision.cli.format.table import table_text
    from provision.commands.matrix import show

    console.as_json = console.as_json or format == "json"
    table = show(options)
    console.result(table, "" if console.as_json else table_text(table, format))
    return 0


@matrix.command()
@name_argument
@request_options
@common_options
@verb
def explain(console: Console, name: str | None, envs: Path | None, **options: Any) -> None:
    """Explain an environment: every choice, pin, rule and warning, and what was not chosen.

    NAME is an environment with a spec.yml in the envs folder; options override what it says.
    """
    from provision.cli.format.explanation import explanation_lines
    from provision.commands import matrix as command
    from provision.core.paths import default_folders

    explanation = command.explain(default_folders(envs).envs, name, spec_options(options))
    console.result(explanation, explanation_lines(explanation))


@matrix.command("lock")
@query_options
@click.option("--newest", is_flag=True, help="Only the newest patch of each minor release.")
@companion_options
@mirror_options
@relock_option
@dry_run_option
@common_options
@verb
def lock(
    console: Console,
    envs: Path | None,
    dry_run: bool,
    relock: bool,
    newest: bool,
    mirrors: tuple[str, ...],
    alias: str | None,
    **options: Any,
) -> int:
    """Lock every build that fits, each as its own environment.

    One that fails does not stop the others.

    \b
    Everything from 2.1 on that driver 535 runs, from conda-forge:
    provision matrix lock --torch '>=2.1' --driver 535 --source conda-forge
    """
    from provision.commands import batch

    if not any(options.values()):
        raise click.UsageError(
            "Say which builds to lock, e.g. --torch '>=2.4' --driver 535; without options it "
            "would be all of them."
        )
    context = context_of(console, envs, {"mirrors": mirrors, "alias": alias})
    requests = batch.matrix_requests(options, newest=newest, relock=relock)
    return print_outcomes(console, batch.lock_all(context, requests, dry_run=dry_run))


matrix.add_command(ci)
