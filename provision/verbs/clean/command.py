"""`provision status` and `provision clean`: this machine, and what can go from it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from provision.cli.options import dry_run_option, yes_option
from provision.cli.verb import confirm, context_of, verb
from provision.verbs.clean.kinds import KINDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from provision.cli.console import Console
    from provision.verbs.clean.clean import Removable


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
    from provision.cli.text import removal_lines
    from provision.verbs.clean import clean as command

    def lines(items: Sequence[Removable]) -> list[str]:
        rows = ((item.kind, item.usage.size, item.usage.freed, item.path) for item in items)
        return removal_lines(rows, width=output_width())

    context = context_of(console, envs)
    items = command.removable(context, kinds)
    if items and not dry_run:
        if not confirm("Remove all this?", lines(items), yes=yes):
            console.info("nothing was removed")
            console.result("clean", {"removed": [], "dry_run": False}, "")
            return 1
        items = command.clean(context, items)
    console.result("clean", {"removed": items, "dry_run": dry_run}, lines(items))
    return 0
