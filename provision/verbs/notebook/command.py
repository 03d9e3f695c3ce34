"""`provision notebook`: JupyterLab for an environment."""

from __future__ import annotations

import os
import platform
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from provision.cli.freshness import freshness_options, up_to_date
from provision.cli.options import mirror_option
from provision.cli.verb import context_of, verb

if TYPE_CHECKING:
    from provision.cli.console import Console
    from provision.verbs.notebook.notebook import RunningNotebook


@click.command()
@click.argument("name")
@click.argument(
    "folder",
    required=False,
    default=".",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="Port on 127.0.0.1.  [default: the first free one from 8888 on]",
)
@click.option("--update", is_flag=True, help="First install the newest JupyterLab.")
@freshness_options
@mirror_option
@verb
def notebook(
    console: Console,
    name: str,
    envs: Path | None,
    folder: Path,
    port: int | None,
    update: bool,
    sync: bool,
    locked: bool,
    **options: Any,
) -> None:
    """Start JupyterLab for an environment, and print its address.

    FOLDER is where the notebooks are, by default the current folder.

    It listens on 127.0.0.1 only and asks for a token, which is in the address. New notebooks use the
    environment; kernels of others can be chosen. JupyterLab is installed once, in an environment of
    its own, and nothing is added to yours. Ctrl-C stops it.
    """
    from provision.verbs.notebook import notebook as command
    from provision.workflow.project import require_prefix

    def show(server: RunningNotebook) -> None:
        # The address has a line of its own, so that 80 columns do not cut it.
        lines = [f"JupyterLab for {server.name}, with the kernel {server.kernel}:", server.address]
        if "SSH_CONNECTION" in os.environ:
            number = urlsplit(server.address).port
            tunnel = f"ssh -N -L {number}:127.0.0.1:{number} {platform.node()}"
            lines.append(f"from your own machine, first: {tunnel}")
        lines.append("Ctrl-C stops it.")
        console.result("notebook", server, lines, shows_token=True)

    def log(line: str) -> None:
        if console.verbose:
            console.info(line, shows_token=True)

    context = context_of(console, envs, options)
    find = partial(require_prefix, context.folders, name)
    up_to_date(console, name, find, envs=envs, sync=sync, locked=locked)
    started: list[RunningNotebook] = []

    def start(server: RunningNotebook) -> None:
        started.append(server)
        show(server)

    try:
        command.notebook(
            context, name, folder=folder, port=port, update=update, on_start=start, on_line=log
        )
    except KeyboardInterrupt:
        if not started:
            raise
        console.info("stopped")
