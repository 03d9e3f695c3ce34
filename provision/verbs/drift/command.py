"""`provision drift`: whether nodes still have the same environment, stack and settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provision.cli.cluster_options import cluster_options, selection_of
from provision.cli.verb import context_of, verb

if TYPE_CHECKING:
    from provision.cli.console import Console


@click.command()
@click.argument("name")
@cluster_options
@click.option("--deep", is_flag=True, help="Compare every byte of the environment's files.")
@click.option(
    "--prefix",
    metavar="PATH",
    help="The environment's folder on the nodes, if `provision ship` did not put it there.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also write the result to a file, for `provision report --nodes`.",
)
@verb
def drift(
    console: Console,
    name: str,
    envs: Path | None,
    deep: bool,
    prefix: str | None,
    output: Path | None,
    **options: Any,
) -> int:
    """Compare nodes and name those that deviate.

    Compares the environment, driver and GPUs, NCCL and its plug-ins, network, system, limits and
    settings. What most nodes have counts as right. NAME is an environment that `provision ship` put
    on the nodes. The exit code is 1 if a node deviates, or does not answer.

    \b
    provision drift train --on a100 -o drift.json
    provision report --nodes drift.json -o drift.html
    """
    from provision.cli.console import output_width
    from provision.verbs.drift import drift as command
    from provision.verbs.drift.output import drift_lines
    from provision.verbs.drift.survey import DriftRequest

    selection = selection_of(envs, options)
    request = DriftRequest(name=name, selection=selection, prefix=prefix or "", deep=deep)
    record = command.compare_nodes(context_of(console, envs), request)
    if output is not None:
        command.write_record(output, record)
    lines = drift_lines(record, selection, verbose=console.verbose, width=output_width())
    console.result("drift", record, lines)
    return 0 if record["verdict"] == "same" else 1
