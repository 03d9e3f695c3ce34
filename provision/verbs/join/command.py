"""`provision join`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from provision.cli.options import dry_run_option
from provision.cli.verb import verb

if TYPE_CHECKING:
    from provision.cli.console import Console


@click.command()
@click.argument("source", required=False, metavar="[GIT-URL|FOLDER]")
@dry_run_option
@verb
def join(console: Console, source: str | None, dry_run: bool) -> int:
    """Join a lab: its environments, kernels, folders, and a first job.

    Reads lab.yml of the lab's repository, and asks nothing. Changes only provision's own folders
    and Jupyter's kernels; what you should change yourself (keys, start files of the shell) is
    printed. A step that fails stays open; run the same command again to continue there. --dry-run
    shows the state of each step.

    Without an address, join continues with the lab that you joined. The exit code is 1 if a step is
    open.
    """
    from provision.verbs.join import join as command
    from provision.verbs.join.output import join_json, join_lines

    report = command.join(source, console, act=not dry_run)
    console.result("join", join_json(report), join_lines(report))
    return 1 if report.open_steps else 0
