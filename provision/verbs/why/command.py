"""`provision why`: why ranks hang, or how they ended."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from provision.cli.verb import context_of, verb

if TYPE_CHECKING:
    from provision.cli.console import Console


@click.command()
@click.argument("subject", default="", metavar="[PID | FOLDER | NAME]")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="Also write the page to this file."
)
@verb
def why(console: Console, envs: Path | None, subject: str, out: Path | None) -> int:
    """Say why the ranks of a training job hang, or why they ended.

    Finds your ranks on this machine: all of them, those of a process, those that work in a folder, or
    those of an environment. Shows who waits where, the rank that differs, and the cause if it is known.
    If no rank runs, it says how those of the last job ended. Changes nothing in them.

    The exit code is 0 only if nothing hangs, as far as seen; it is 1 for a hang, an error of a rank, or
    what could not be read.

    \b
    provision why
    provision why 4711
    """
    from provision.cli.console import output_width
    from provision.core.atomic import atomic_write
    from provision.verbs.why import output
    from provision.verbs.why.why import examine

    result = examine(context_of(console, envs), subject)
    if out is not None:
        atomic_write(out, "".join(f"{line}\n" for line in output.lines(result, None)))
    console.result("why", result, output.lines(result, output_width()))
    return result.exit_code
