"""The options that verbs over nodes share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provision.cli.options import option_group

if TYPE_CHECKING:
    from provision.cluster.inventory import NodeSelection

on_option = click.option(
    "--on",
    required=True,
    metavar="NODES",
    help=(
        "Nodes: a group of nodes.yml, a node set (`n[1-4]`, `@group`), `slurm:PARTITION`, "
        "`k8s:SELECTOR`, `ssh:HOST,...` or `local`."
    ),
)
inventory_option = click.option(
    "--inventory",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The lab's nodes.  [default: nodes.yml next to the envs folder, if it exists]",
)
fanout_option = click.option(
    "--fanout",
    type=click.IntRange(1),
    metavar="N",
    help="Nodes at the same time.  [default: 64, or as nodes.yml says]",
)
connect_timeout_option = click.option(
    "--connect-timeout",
    "connect_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="Time limit for connecting to a node, in seconds.  [default: 10, or as nodes.yml says]",
)
cluster_options = option_group(on_option, inventory_option, fanout_option, connect_timeout_option)


def selection_of(
    envs: Path | None, options: Mapping[str, Any], assumed_nodes: int = 0
) -> NodeSelection:
    """The nodes that the options of a command select. Raises as `select_nodes` does.

    assumed_nodes: how many to assume of a partition or selector whose engine does not answer; 0
    raises instead.
    """
    import dataclasses

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
    overrides = {
        key: options[key] for key in ("fanout", "connect_s") if options.get(key) is not None
    }
    return dataclasses.replace(
        selection, defaults=dataclasses.replace(selection.defaults, **overrides)
    )
