"""`provision smoke`: the DDP smoke test of an environment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provision.cli.cluster_options import inventory_option, selection_of
from provision.cli.options import environment_argument, option_group, prefix_option, quick_option
from provision.cli.spec_options import build_request, settings_option
from provision.cli.verb import context_of, verb

if TYPE_CHECKING:
    from provision.cli.console import Console
    from provision.workflow.smoke.nodes import NodesRequest

# The name is that of SmokeRequest's field.
output_option = click.option(
    "-o",
    "--output",
    "out",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Folder for the report, logs and stack traces.  [default: in the user's data folder]",
)
# What a test over nodes has in addition; the names are those of NodesRequest's fields.
node_options = option_group(
    click.option(
        "--on",
        metavar="NODES",
        help=(
            "Test on these nodes, with ranks on all of them: a group of nodes.yml, a node set "
            "(`n[1-4]`, `@group`), `slurm:PARTITION` or `ssh:HOST,...`.  [default: this machine]"
        ),
    ),
    inventory_option,
    click.option(
        "--nodes",
        "count",
        type=click.IntRange(1),
        metavar="N",
        help="Test N of the nodes.  [default: all]",
    ),
    click.option(
        "--pairs",
        is_flag=True,
        help="If the nodes fail together, test them alone and in pairs, until the bad node "
        "or link is found.",
    ),
    click.option(
        "--health-check",
        is_flag=True,
        help="Test nothing: print a script for Slurm's HealthCheckProgram or Prolog.",
    ),
)
# What only tests over nodes take, by parameter; the others need --on.
NODE_OPTIONS = {
    "on": "--on",
    "inventory": "--inventory",
    "count": "--nodes",
    "pairs": "--pairs",
}


@click.command()
@environment_argument
@prefix_option
@click.option("--image/--no-image", help="Test the image too.  [default: no-image]")
@settings_option
@quick_option
@output_option
@node_options
@verb
def smoke(
    console: Console,
    name: str,
    envs: Path | None,
    prefix: Path | None,
    image: bool,
    **options: Any,
) -> int:
    """Run the DDP smoke test. The exit code is 1 unless the verdict is pass or warn.

    Phases: facts, rendezvous, barrier, collectives, compute, DDP, file system, checkpoint. With
    --on the ranks run on nodes of a cluster.
    """
    from provision.cli.smoke_output import smoke_lines
    from provision.workflow.smoke import smoke as workflow
    from provision.workflow.smoke.runner import failures

    if options.pop("health_check"):
        from provision.verbs.smoke.health_check import health_check_script

        script = health_check_script(name, prefix, options["inventory"])
        console.result("smoke-health-check", {"script": script}, script.splitlines())
        return 0
    nodes = _nodes_request(envs, options, image=image)
    context = context_of(console, envs, options)
    request = build_request(name, options, prefix=prefix)
    if nodes is not None:
        from provision.cli.console import output_width
        from provision.verbs.smoke.output import smoke_nodes_lines
        from provision.workflow.smoke.nodes import smoke_nodes
        from provision.workflow.smoke.nodes_report import document
        from provision_runtime.report.model import succeeded

        tested = smoke_nodes(context, request, nodes)
        console.result("smoke-nodes", document(tested), smoke_nodes_lines(tested, output_width()))
        return 0 if succeeded(tested.verdict) else 1
    results = workflow.smoke(context, request, with_image=image)
    lines = []
    for result in results:
        lines += smoke_lines(result, brief=console.shows_all_on_terminal)
    console.result("smoke", {"results": results}, lines)
    return 1 if failures(results) else 0


def _nodes_request(
    envs: Path | None, options: dict[str, Any], *, image: bool
) -> NodesRequest | None:
    """What is requested of nodes, taken out of the options; None for a test of this machine."""
    from provision.core.errors import InvalidSpec
    from provision.workflow.smoke.nodes import NodesRequest

    values = {name: options.pop(name) for name in NODE_OPTIONS}
    stated = {name: value for name, value in values.items() if value not in (None, False)}
    if not stated:
        return None
    if "on" not in stated:
        option = NODE_OPTIONS[next(iter(stated))]
        raise InvalidSpec(f"{option} needs --on.", advice="Name the nodes with --on.")
    if image:
        raise InvalidSpec("--image cannot be combined with --on.", advice="Leave it out.")
    selected = {name: stated.pop(name, None) for name in ("on", "inventory")}
    return NodesRequest(selection=selection_of(envs, selected), **stated)
