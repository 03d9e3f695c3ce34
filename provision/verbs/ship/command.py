"""`provision ship`, `activate` and `rollback`: an environment on the nodes of a cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provision.cli.cluster_options import cluster_options, selection_of
from provision.cli.options import dry_run_option
from provision.cli.set_option import set_option, setting
from provision.cli.verb import context_of, verb
from provision.core.dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from provision.cli.console import Console
    from provision.workflow.ship.stages import ShipRequest, StageRun, Verb

store_option = click.option(
    "--to",
    "target",
    type=click.Choice(["local", "shared"]),
    help="local: every node has a store of its own. shared: all nodes see one store, which gets "
    "one copy.  [default: local, or as nodes.yml says]",
)
minimum_option = click.option(
    "--min",
    "minimum",
    default="all",
    show_default=True,
    metavar="NODES",
    help="How many nodes must be ready before any is activated: `all`, `95%` or a number.",
)


@frozen
class SwitchSettings:
    """Of ShipRequest, for all three verbs."""

    retries: int = setting(
        click.IntRange(0),
        "Tries after a failure that may pass, in each stage on each node.  [default: 2]",
        default=2,
    )
    deadline: float = setting(
        click.FloatRange(min=1),
        "Time limit of a stage on a node, in seconds. Large files get more time, and so do nodes "
        "that are up to three times as slow as most.  [default: 120]",
        default=120.0,
    )


@frozen
class ShipSettings(SwitchSettings):
    tree: int = setting(
        click.IntRange(0),
        "How many nodes fetch the image from one node at the same time. 0: each node gets its copy "
        "from this machine.  [default: 2]",
        default=2,
    )


down_option = click.option(
    "--include-down",
    is_flag=True,
    help="Include nodes that are down, drained or reserved, which are otherwise left out.",
)
older_option = click.option(
    "--allow-older",
    is_flag=True,
    help="On nodes that require signatures: accept a pack that was signed before the active one.",
)
key_option = click.option(
    "--key", metavar="KEY", help="The environment to activate, as `envs/KEY` on the nodes."
)


@click.command()
@click.argument("name")
@cluster_options
@store_option
@minimum_option
@down_option
@set_option(ShipSettings)
@click.option(
    "--stage-only", is_flag=True, help="Send, verify and install the pack, but do not activate it."
)
@click.option(
    "--canary",
    metavar="WAVES",
    help="Activate in waves, and stop at the first that fails: `1,5%,all` is one node, then 5 % of all, "
    "then all. `rack:NAME` and `zone:NAME` are waves too, and `racks` is one for each rack. Without "
    "`all`, the others stay ready for `activate`.",
)
@click.option(
    "--smoke",
    type=click.Choice(["quick", "default", "full"]),
    help="With --canary: run the smoke test on each wave before the next.",
)
@click.option(
    "--boot-unit",
    is_flag=True,
    help=(
        "Also install a systemd unit that mounts all environments again when a node restarts. "
        "Needs root there."
    ),
)
@click.option(
    "--module",
    metavar="DIR",
    help="Also write modulefiles below this folder of the nodes, now and at each activation: `module "
    "load NAME` (Lmod, Environment Modules) then loads the active environment.",
)
@older_option
@dry_run_option
@verb
def ship(console: Console, name: str, envs: Path | None, **options: Any) -> int:
    """Send a packed environment to nodes, verify it, and activate it.

    Sends the pack that `provision pack NAME` made to one node; nodes that have it pass it on. It is
    activated when enough nodes are ready (--min). Nothing is sent twice: what a node already has
    stays. The exit code is 1 if fewer nodes than --min are active at the end.

    A node is pending, fit, shipped, verified, passed (its Python starts) and finally active; or
    failed at a stage, or unknown if it did not answer in time.

    \b
    provision ship train --on slurm:gpu
    provision ship train --on 'n[001-128]' --min 95%
    """
    from provision.workflow.ship import ship as command

    context = context_of(console, envs)
    return _print(console, command.ship(context, _request(name, envs, options)))


@click.command()
@click.argument("name")
@cluster_options
@store_option
@minimum_option
@down_option
@set_option(SwitchSettings)
@key_option
@older_option
@dry_run_option
@verb
def activate(console: Console, name: str, envs: Path | None, **options: Any) -> int:
    """Activate an environment that nodes already have.

    Sends nothing. Use it after `ship --stage-only`, or after a node has restarted: it mounts the
    environment there again. Without --key, it takes the latest pack that this machine made. Running
    jobs stay in the environment that they started in.

    (To use an environment on this machine: `provision shell NAME`.)
    """
    return _switch(console, "activate", name, envs, options)


@click.command()
@click.argument("name")
@cluster_options
@store_option
@minimum_option
@down_option
@set_option(SwitchSettings)
@key_option
@dry_run_option
@verb
def rollback(console: Console, name: str, envs: Path | None, **options: Any) -> int:
    """Go back to the environment that was active on nodes before.

    Nodes keep the last three environments of a name. Nothing changes if fewer nodes than --min have
    the one before. A second rollback undoes the first.
    """
    return _switch(console, "rollback", name, envs, options)


def _switch(
    console: Console, verb: Verb, name: str, envs: Path | None, options: Mapping[str, Any]
) -> int:
    from provision.workflow.ship import ship as command

    request = _request(name, envs, options)
    context = context_of(console, envs)
    return _print(console, command.switch(context, verb, request, options["key"]))


def _request(name: str, envs: Path | None, options: Mapping[str, Any]) -> ShipRequest:
    from provision.cluster.service import is_out_of_service
    from provision.core.errors import CheckFailed, InvalidSpec
    from provision.workflow.ship.stages import ShipRequest
    from provision.workflow.ship.states import expand_waves

    canary, module = options.get("canary"), options.get("module") or ""
    selection = selection_of(envs, options)
    is_shared = (options["target"] or selection.defaults.store) == "shared"
    if canary and is_shared:
        raise InvalidSpec(
            "--canary: nodes that share a store are activated together.",
            advice="Leave it out, or ship with --to local.",
        )
    if canary and options["stage_only"]:
        raise InvalidSpec("--stage-only activates nothing, so it cannot be combined with --canary.")
    if options.get("smoke") and not canary:
        raise InvalidSpec("--smoke needs --canary.", advice="Add --canary 1,all.")
    if module and not module.startswith("/"):
        raise InvalidSpec(
            f"--module {module} is not a folder on the nodes.",
            advice="Write an absolute path, which is in their MODULEPATH.",
        )
    left_out = []
    if not options["include_down"]:
        left_out = [node for node in selection.nodes if is_out_of_service(node)]
    usable = tuple(node for node in selection.nodes if node not in left_out)
    if not usable:
        states = ", ".join(sorted({node.state for node in left_out}))
        raise CheckFailed(
            f"All nodes of `{selection.text}` are out of service: {states}.",
            advice="--include-down uses them anyway; `sinfo -R` has the reasons.",
        )
    settings = options["settings"]
    return ShipRequest(
        name=name,
        selection=replace(selection, nodes=usable),
        minimum=options["minimum"],
        retries=settings.retries,
        deadline_s=settings.deadline,
        shared=is_shared,
        tree=getattr(settings, "tree", 0),
        stage_only=options.get("stage_only", False),
        waves=expand_waves((canary or "all").split(","), usable),
        module_folder=module,
        boot_unit=options.get("boot_unit", False),
        allow_older=options.get("allow_older", True),
        dry_run=options["dry_run"],
        smoke=options.get("smoke"),
        left_out=tuple(left_out),
    )


def _print(console: Console, report: StageRun) -> int:
    from provision.cli.console import output_width
    from provision.verbs.ship.output import ship_json, ship_lines

    console.result("ship", ship_json(report), ship_lines(report, output_width()))
    return 0 if report.succeeded else 1
