"""`provision drift`: whether nodes still have the same environment, stack and settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provision.cli.cluster_options import cluster_options, selection_of
from provision.cli.verb import context_of, verb

if TYPE_CHECKING:
    from provision.cli.console import Console

# Reading 5 GB takes a node 10 s of a CPU, and minutes from a cold network file system.
TIMEOUT_S, DEEP_TIMEOUT_S = 60.0, 1800.0


@click.command()
@click.argument("name")
@cluster_options
@click.option("--deep", is_flag=True, help="Compare every byte of the environment's files.")
@click.option(
    "--expect",
    metavar="PASSPORT",
    help=(
        "Also compare with what nodes must have: PASSPORT is an environment with a passport or "
        "a passport.json (its lock, the driver and glibc that it needs), or a pack (every file)."
    ),
)
@click.option(
    "--prefix",
    metavar="PATH",
    help="The environment's folder on the nodes, if `provision ship` did not put it there.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also write the result to a file, for `provision report --nodes`.",
)
@verb
def drift(
    console: Console,
    name: str,
    envs: Path | None,
    deep: bool,
    expect: str | None,
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

    if output is not None:
        command.check_output(output)
    request = DriftRequest(
        name=name,
        prefix=prefix or "",
        deep=deep,
        timeout_s=DEEP_TIMEOUT_S if deep else TIMEOUT_S,
    )
    selection = selection_of(envs, options)
    context = context_of(console, envs)
    record = command.compare_nodes(context, selection, request, expect)
    if output is not None:
        command.write_record(output, record)
    lines = drift_lines(record, verbose=console.verbose, width=output_width())
    console.result("drift", record, lines)
    return 0 if record["verdict"] == "same" else 1
