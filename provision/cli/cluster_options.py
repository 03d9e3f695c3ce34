"""The options that verbs over nodes share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provision.cli.options import option_group

if TYPE_CHECKING:
    from provision.cluster.inventory import NodeSelection

inventory_option = option_group(
    click.option(
        "--inventory",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="The lab's nodes.  [default: nodes.yml next to the envs folder, if it exists]",
    ),
    section="Nodes",
)
on_option = option_group(
    click.option(
        "--on",
        required=True,
        metavar="NODES",
        help=(
            "Nodes: a group of nodes.yml, a node set (`n[1-4]`, `@group`), `slurm:PARTITION`, "
            "`k8s:SELECTOR`, `ssh:HOST,...` or `local`."
        ),
    ),
    section="Nodes",
)
namespace_option = click.option(
    "--namespace", metavar="NAME", help="Kubernetes: namespace of the jobs."
)
cluster_options = option_group(on_option, inventory_option)


def selection_of(
    envs: Path | None, options: Mapping[str, Any], assumed_nodes: int = 0
) -> NodeSelection:
    """The nodes that the options of a command select. Raises as `select_nodes` does.

    assumed_nodes: how many to assume of a partition or selector whose engine does not answer; 0
    raises instead.
    """
    from dataclasses import replace

    from provision.cluster.inventory import assume_nodes, find_inventory, select_nodes
    from provision.core.errors import ToolMissing, Unreachable
    from provision.core.paths import default_folders

    inventory = find_inventory(default_folders(envs).envs, options["inventory"])
    try:
        selection = select_nodes(options["on"], inventory)
    except (ToolMissing, Unreachable):
        assumed = assume_nodes(options["on"], assumed_nodes, inventory) if assumed_nodes else None
        if assumed is None:
            raise
        selection = assumed
    return replace(selection, inventory=options["inventory"])
