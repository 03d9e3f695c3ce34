"""`provision matrix`: which builds exist, and why a request comes to one of them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from provision.cli.other_tools import GroupWithForeignVerbs
from provision.cli.spec_options import (
    name_argument,
    query_options,
    request_options,
    spec_options,
)
from provision.cli.verb import context_of, verb

if TYPE_CHECKING:
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
    misplaced = []
    for name in options:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            misplaced.append(f"--{name}")
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
    """Explain every choice, pin, rule and warning of an environment.

    Also says what was not chosen, and why.
    """
    from provision.core.paths import default_folders
    from provision.verbs.matrix import matrix as command
    from provision.verbs.matrix.output import explanation_lines

    # The solver and its mirrors take 0.1 s to load, and are rarely needed.
    make_context = partial(context_of, console, envs, options)
    folder = default_folders(envs).envs
    explanation = command.explain(make_context, folder, name, spec_options(options))
    console.result("matrix-explain", explanation, explanation_lines(explanation))
