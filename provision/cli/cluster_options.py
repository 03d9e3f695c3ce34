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


def selection_of(envs: Path | None, options: Mapping[str, Any]) -> NodeSelection:
    """The nodes that the options of a command select. Raises as `select_nodes` does."""
    import dataclasses

    from provision.cluster.inventory import find_inventory, select_nodes
    from provision.core.paths import default_folders

    inventory = find_inventory(default_folders(envs).envs, options["inventory"])
    selection = select_nodes(options["on"], inventory)
    given = {key: options[key] for key in ("fanout", "connect_s") if options.get(key) is not None}
    return dataclasses.replace(selection, defaults=dataclasses.replace(selection.defaults, **given))
