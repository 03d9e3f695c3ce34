"""`provision notebook`: JupyterLab for an environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provision.cli.freshness import freshness_options, up_to_date
from provision.cli.options import mirror_option
from provision.cli.verb import context_of, verb

if TYPE_CHECKING:
    from provision.cli.console import Console


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
@click.option("--relock", is_flag=True, help="First install the newest JupyterLab.")
@freshness_options
@mirror_option
@verb
def notebook(
    console: Console,
    name: str,
    envs: Path | None,
    folder: Path,
    port: int | None,
    relock: bool,
    sync: bool,
    locked: bool,
    **options: Any,
) -> None:
    """Start JupyterLab for an environment, which prints its address.

    FOLDER is where the notebooks are, by default the current folder.

    It listens on 127.0.0.1 only and asks for a token, which is in the address. New notebooks use the
    environment; kernels of others can be chosen. JupyterLab is installed once, in an environment of
    its own, and nothing is added to yours. Ctrl-C stops it.
    """
    from provision.core.process import exec_command
    from provision.environment import jupyter_server
    from provision.workflow.kernel import add_kernel
    from provision.workflow.plan import BuildRequest

    context = context_of(console, envs, options)
    up_to_date(console, name, envs=envs, sync=sync, locked=locked)
    kernel, _ = add_kernel(context, BuildRequest(name=name))
    python = jupyter_server.ensure_server(
        context.folders, context.progress, context.mirrors, update=relock
    )
    console.info(f"JupyterLab for {name}, with the kernel {kernel.display_name}; Ctrl-C stops it")
    if "SSH_CONNECTION" in os.environ:
        console.info("from your own machine, first: ssh -N -L PORT:127.0.0.1:PORT HOST")
    command = jupyter_server.server_command(python, kernel.name, folder.absolute(), port)
    exec_command(command, jupyter_server.server_variables())
