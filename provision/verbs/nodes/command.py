"""`provision nodes`: the nodes of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provision.cli.cluster_options import cluster_options, selection_of
from provision.cli.verb import context_of, verb

if TYPE_CHECKING:
    from provision.cli.console import Console


@click.group()
def nodes() -> None:
    """List and check the nodes of a cluster."""


@nodes.command("list")
@cluster_options
@verb
def list_(console: Console, envs: Path | None, **options: Any) -> None:
    """List nodes: engine, how each is reached, state, GPUs, other names.

    Contacts only the engine (Slurm, Kubernetes), not the nodes.
    """
    from provision.cli.console import output_width
    from provision.cluster.remote import transport
    from provision.verbs.nodes.output import node_json, selection_lines

    selection = selection_of(envs, options)
    rows = [
        {**node_json(node), "reached_by": transport(node, selection.defaults)}
        for node in selection.nodes
    ]
    document = {"on": selection.text, "nodes": rows}
    console.result("nodes-list", document, selection_lines(selection, output_width()))


@nodes.command("check")
@click.argument("name", required=False)
@cluster_options
@verb
def check(console: Console, name: str | None, envs: Path | None, **options: Any) -> int:
    """Check whether nodes can store and run environments.

    Asks each node for its facts: processor, glibc, driver, GPUs, disk, its own name, clock, ways to
    mount an image. Installs nothing there. The exit code is 1 if one node is not fit.

    With NAME, also checks what this environment needs; and where it was shipped, whether you can start
    it there.

    \b
    provision nodes check --on slurm:gpu
    provision nodes check train --on 'n[01-64]'
    """
    from provision.cli.console import output_width
    from provision.cluster.fitness import NO_NEEDS
    from provision.verbs.nodes import nodes as command
    from provision.verbs.nodes.output import check_lines, node_json

    selection = selection_of(envs, options)
    needs = NO_NEEDS if name is None else command.environment_needs(context_of(console, envs), name)
    report = command.check(selection, console, needs)
    is_fit = all(row.verdict in ("fit", "same") for row in report)
    rows = [
        {
            **node_json(row.node),
            "verdict": row.verdict,
            "problems": row.problems,
            "warnings": row.warnings,
            "facts": row.facts,
        }
        for row in report
    ]
    document = {"environment": needs.name or None, "is_fit": is_fit, "nodes": rows}
    console.result("nodes-check", document, check_lines(report, needs.name, output_width()))
    return 0 if is_fit else 1
