"""`provision store`: the environments that nodes store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provision.cli.cluster_options import cluster_options, selection_of
from provision.cli.options import dry_run_option
from provision.cli.verb import context_of, verb

if TYPE_CHECKING:
    from provision.cli.console import Console


@click.group()
def store() -> None:
    """List and remove environments on nodes; say who changed what."""


@store.command("list")
@cluster_options
@verb
def list_(console: Console, envs: Path | None, **options: Any) -> int:
    """List the environments on nodes: state, size, last use.

    Includes environments that nobody ships any more. The last use is when its image was last read,
    if the node's file system records that.
    """
    return _print_contents(console, envs, options, "list_lines")


@store.command("disk")
@cluster_options
@verb
def disk(console: Console, envs: Path | None, **options: Any) -> int:
    """Show what environments take of the nodes' disks, and what is free."""
    return _print_contents(console, envs, options, "disk_lines")


def _print_contents(console: Console, envs: Path | None, options: Any, lines: str) -> int:
    from provision.cli.console import output_width
    from provision.cluster import actions
    from provision.verbs.store import output
    from provision.verbs.store import store as command

    report = command.ask(selection_of(envs, options), actions.STORE_CONTENTS, {})
    text = getattr(output, lines)(report, output_width())
    console.result("store", output.report_json(report), text)
    return 1 if report.failures else 0


@store.command("log")
@click.argument("of_name", metavar="[NAME]", required=False)
@cluster_options
@verb
def log(console: Console, of_name: str | None, envs: Path | None, **options: Any) -> int:
    """Show who shipped, activated and removed what on nodes, and from where."""
    from provision.cli.console import output_width
    from provision.cluster import actions
    from provision.verbs.store import output
    from provision.verbs.store import store as command

    arguments = {"name": of_name or ""}
    report = command.ask(selection_of(envs, options), actions.STORE_LOG, arguments)
    lines = output.log_lines(report, output_width())
    console.result("store-log", output.report_json(report), lines)
    return 1 if report.failures else 0


@store.command("remove")
@click.argument("name_or_key", metavar="NAME|KEY")
@cluster_options
@click.option("--active", is_flag=True, help="Also remove the active one.")
@dry_run_option
@verb
def remove(
    console: Console, name_or_key: str, envs: Path | None, active: bool, **options: Any
) -> int:
    """Remove an environment from nodes: all that have a NAME, or one KEY.

    The active environment stays, unless you pass --active. So does one that a process uses, as far
    as you may see the processes of that node. The exit code is 1 if one stays for another reason,
    or if nothing was removed.
    """
    from provision.cli.console import output_width
    from provision.verbs.store import output
    from provision.verbs.store import store as command

    dry_run = options["dry_run"]
    report = command.remove(
        context_of(console, envs, options),
        selection_of(envs, options),
        name_or_key,
        active_too=active,
        dry_run=dry_run,
    )
    lines = output.remove_lines(report, dry_run, output_width())
    console.result("store-remove", output.report_json(report), lines)
    return 0 if command.is_done(report) else 1
