"""`provision render`: the generated files of an environment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provision.cli.options import dry_run_option
from provision.cli.spec_options import build_request, name_argument, request_options
from provision.cli.verb import context_of, verb

if TYPE_CHECKING:
    from provision.cli.console import Console


@click.command()
@name_argument
@request_options
@click.option("--force", is_flag=True, help="Overwrite generated files that were edited by hand.")
@dry_run_option
@verb
def render(
    console: Console,
    name: str | None,
    envs: Path | None,
    force: bool,
    dry_run: bool,
    **options: Any,
) -> None:
    """Write the generated files of an environment.

    They are environment.yml, virtual-packages.yml and, with a current lock, the Dockerfile. All
    are made from spec.yml.
    """
    from provision.verbs.render import render as command
    from provision.workflow.ensure import previewed_plan

    context = context_of(console, envs, options)
    request = build_request(name, options, force=force)
    if dry_run:
        with previewed_plan(context, request) as plan:
            texts = plan.texts
        console.document("render-preview", {"files": texts}, "\n".join(texts.values()))
        return
    written = command.render(context, request)
    lines = [f"wrote {file}" for file in written]
    if not written:
        lines = ["nothing to write: all files are as rendered"]
    console.result("render", {"written": written}, lines)
