"""`provision status`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from provision.cli.verb import context_of, verb

if TYPE_CHECKING:
    from provision.cli.console import Console


@click.command()
@verb
def status(console: Console, envs: Path | None) -> None:
    """Show this machine at a glance: GPUs, Docker, disk, environments."""
    from provision.cli.console import output_width
    from provision.verbs.status.output import status_lines
    from provision.verbs.status.status import machine_status

    machine = machine_status(context_of(console, envs))
    console.result("status", machine, status_lines(machine, width=output_width()))
