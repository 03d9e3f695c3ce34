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


def selection_of(envs: Path | None, options: Mapping[str, Any]) -> NodeSelection:
    """The nodes that the options of a command select. Raises as `select_nodes` does."""
    from dataclasses import replace

    from provision.cluster.inventory import find_inventory, select_nodes
    from provision.core.paths import default_folders

    inventory = find_inventory(default_folders(envs).envs, options["inventory"])
    return replace(select_nodes(options["on"], inventory), inventory=options["inventory"])
