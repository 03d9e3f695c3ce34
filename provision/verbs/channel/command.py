"""`provision channel`: local conda channels and mirrors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provision.cli.options import dry_run_option, mirror_option
from provision.cli.verb import context_of, verb

if TYPE_CHECKING:
    from provision.cli.console import Console


@click.group()
def channel() -> None:
    """Make local conda channels and mirrors."""


@channel.command("bootstrap")
@click.option(
    "--force", is_flag=True, help="Package Python again, even if the channel has this version."
)
@mirror_option
@dry_run_option
@verb
def bootstrap(
    console: Console, envs: Path | None, force: bool, dry_run: bool, **options: Any
) -> None:
    """Package this machine's Python and pip as a local conda channel.

    Environments can then be locked where no conda channel can be reached.
    """
    from provision.channel import read_host_python
    from provision.workflow.ensure import ensure_host_channel

    context = context_of(console, envs, options)
    channels = context.folders.channels
    if dry_run:
        python = read_host_python()
        text = f"would package Python {python.version} ({python.executable}) into {channels}"
        console.result("channel-bootstrap-preview", python, text)
        return
    host_channel = ensure_host_channel(context, channels, rebuild=force)
    text = f"Python {host_channel.python} in {host_channel.url} (needs glibc {host_channel.glibc})"
    console.result("channel-bootstrap", host_channel, text)


@channel.command("mirror")
@click.argument("targets", metavar="NAME|FILE...", nargs=-1, required=True)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@mirror_option
@dry_run_option
@verb
def mirror(
    console: Console,
    targets: tuple[str, ...],
    folder: Path,
    envs: Path | None,
    dry_run: bool,
    **options: Any,
) -> None:
    """Download all files of locks into DIR, for offline use.

    Other commands use the folder with `--mirror DIR`.

    Conda packages become channels, wheels become a package index. Checks and reuses the files that
    DIR has.
    """
    from provision.verbs.channel import mirror as command
    from provision_runtime.report.text import format_bytes

    context = context_of(console, envs, options)
    result = command.mirror(context, targets, folder, dry_run=dry_run)
    if dry_run:
        lines = [f"would fetch {path}" for path in result.fetched]
        lines.append(f"{folder}: {len(result.fetched)} of {result.files} files to fetch")
    else:
        changes = f"{len(result.fetched)} fetched, {result.reused} reused"
        lines = [f"{folder}: {result.files} files, {format_bytes(result.bytes)} ({changes})"]
    console.result("channel-mirror", result, lines)
