"""`provision store`: the environments that nodes store."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provision.cli.cluster_options import cluster_options, selection_of
from provision.cli.options import dry_run_option
from provision.cli.verb import context_of, verb

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from provision.cli.console import Console
    from provision.cluster.actions import ResultT
    from provision.verbs.store.store import StoreReport


@click.group()
def store() -> None:
    """List and remove environments on nodes; show who changed what."""


@store.command("list")
@cluster_options
@verb
def list_(console: Console, envs: Path | None, **options: Any) -> int:
    """List the environments on nodes: state, size, last use.

    Includes environments that nobody ships any more. The last use is when its image was last read,
    if the node's file system records that.
    """
    from provision.cluster import actions
    from provision.verbs.store import output
    from provision.verbs.store.store import ask

    report = ask(selection_of(envs, options), actions.STORE_CONTENTS)
    return _print(console, "store", report, output.list_lines)


@store.command("disk")
@cluster_options
@verb
def disk(console: Console, envs: Path | None, **options: Any) -> int:
    """Show how much disk space environments take on nodes, and how much is free."""
    from provision.cluster import actions
    from provision.verbs.store import output
    from provision.verbs.store.store import ask

    report = ask(selection_of(envs, options), actions.STORE_CONTENTS)
    return _print(console, "store", report, output.disk_lines)


def _print(
    console: Console,
    schema: str,
    report: StoreReport[ResultT],
    lines: Callable[[Mapping[str, ResultT], int | None], list[str]],
) -> int:
    from provision.cli.console import output_width
    from provision.cli.node_sets import failure_lines

    width = output_width()
    text = [*lines(report.nodes, width), *failure_lines(report.failures, width)]
    console.result(schema, {"nodes": report.nodes, "failures": report.failures}, text)
    return 1 if report.failures else 0


@store.command("log")
@click.argument("of_name", metavar="[NAME]", required=False)
@cluster_options
@verb
def log(console: Console, of_name: str | None, envs: Path | None, **options: Any) -> int:
    """Show who shipped, activated and removed what on nodes, and from where."""
    from provision.cluster import actions
    from provision.verbs.store import output
    from provision.verbs.store.store import ask

    report = ask(selection_of(envs, options), actions.STORE_LOG, name=of_name or "")
    return _print(console, "store-log", report, output.log_lines)


@store.command("remove")
@click.argument("name_or_key", metavar="NAME|KEY")
@cluster_options
@click.option("--force", is_flag=True, help="Also remove the active one.")
@dry_run_option
@verb
def remove(
    console: Console, name_or_key: str, envs: Path | None, force: bool, **options: Any
) -> int:
    """Remove an environment from nodes: all that have a NAME, or one KEY.

    The active environment stays, unless you pass --force. So does one that a process uses, as far
    as you may see the processes of that node. The exit code is 1 if one stays for another reason,
    or if nothing was removed.
    """
    from provision.verbs.store import output
    from provision.verbs.store import store as command

    dry_run = options["dry_run"]
    report = command.remove(
        context_of(console, envs, options),
        selection_of(envs, options),
        name_or_key,
        active_too=force,
        dry_run=dry_run,
    )
    _print(console, "store-remove", report, partial(output.remove_lines, dry_run))
    return 0 if command.is_done(report) else 1
