"""`provision status` and `provision clean`: this machine, and what can go from it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from provision.cli.options import dry_run_option, yes_option
from provision.cli.verb import confirm, context_of, verb
from provision.verbs.clean.kinds import KINDS

if TYPE_CHECKING:
    from provision.cli.console import Console


@click.command()
@click.option(
    "--only",
    "kinds",
    multiple=True,
    type=click.Choice(KINDS),
    metavar="KIND",
    help=f"Clean only this: {', '.join(KINDS[:-1])} or {KINDS[-1]}. Repeatable.",
)
@yes_option
@dry_run_option
@verb
def clean(
    console: Console, kinds: tuple[str, ...], yes: bool, dry_run: bool, envs: Path | None
) -> int:
    """Remove caches, and what no environment needs any more.

    Lists what it would remove, with sizes, and asks. Caches hold what can be downloaded or compiled
    again. Also removes what killed builds and processes left; prefixes whose folder in envs was
    deleted; images, packs, smoke reports and kernels of environments that are neither installed nor
    described. Touches neither other users' files nor uv's cache, which `uv cache prune` cleans.
    """
    from provision.cli.console import output_width
    from provision.verbs.clean import clean as command
    from provision.verbs.clean.output import removable_lines

    context = context_of(console, envs)
    items = command.removable(context, kinds)
    lines = removable_lines(items, width=output_width())
    if dry_run or not items:
        console.result("clean", {"removed": items, "dry_run": dry_run}, lines)
        return 0
    if not confirm("Remove all this?", lines, yes=yes):
        console.info("nothing was removed")
        console.result("clean", {"removed": [], "dry_run": False}, "")
        return 1
    removed = command.clean(context, items)
    lines = removable_lines(removed, width=output_width())
    console.result("clean", {"removed": removed, "dry_run": False}, lines)
    return 0
