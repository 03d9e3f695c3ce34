"""`provision why`: why ranks hang, or how they ended."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provision.cli.cluster_options import inventory_option, namespace_option, selection_of
from provision.cli.verb import context_of, verb

if TYPE_CHECKING:
    from provision.cli.console import Console


@click.command()
@click.argument("subject", default="", metavar="[PID | FOLDER | NAME | JOB]")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write the page to this file.",
)
@click.option("--on", metavar="NODES", help="JOB runs on these hosts. Only needed for plain hosts.")
@inventory_option
@namespace_option
@verb
def why(
    console: Console,
    envs: Path | None,
    subject: str,
    output: Path | None,
    namespace: str | None,
    **options: Any,
) -> int:
    """Explain why the ranks of a training job hang or ended.

    Finds your ranks on this machine: all of them, those of a process, those that work in a folder, or
    those of an environment. Shows who waits where, the rank that differs, and the cause if it is known.
    If no rank runs, it says how those of the last job ended. Changes nothing in them.

    JOB is what `launch` printed: its ranks on all its nodes. Nodes that do not respond are named, and
    `doctor` examines those whose ranks the others wait for.

    The exit code is 1 if ranks hang, if one has failed, or if something could not be read.
    """
    from provision.cli.console import output_width
    from provision.core.atomic import atomic_write
    from provision.verbs.why import job
    from provision.verbs.why.output import lines
    from provision.verbs.why.why import examine

    context = context_of(console, envs)
    selection = selection_of(envs, options) if options["on"] else None
    if job.is_job(subject, selection):
        result = job.examine_job(context, subject, selection, namespace)
    else:
        result = examine(context, subject)
    if output is not None:
        atomic_write(output, "".join(f"{line}\n" for line in lines(result, None)))
    console.result("why", result, lines(result, output_width()))
    return result.exit_code
