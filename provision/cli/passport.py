"""`provision passport`: the record of what was built and measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from provision.cli.options import common_options, context_of, verb

if TYPE_CHECKING:
    from provision.cli.console import Console


@click.group()
def passport() -> None:
    """The record of what was built and measured."""


@passport.command("show")
@click.argument("name")
@common_options
@verb
def show(console: Console, name: str, envs: Path | None) -> None:
    """Show an environment's passport: request, reasons, lock, image, verdicts of smoke tests."""
    from provision.cli.format.passport import passport_lines
    from provision.commands.passport import read_passport

    document = read_passport(context_of(console, envs), name)
    console.result(document, passport_lines(document))
