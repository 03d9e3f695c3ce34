"""`provision lab`: a lab's repository, for its administrator."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from provision.cli.verb import context_of, verb

if TYPE_CHECKING:
    from provision.cli.console import Console

folder_argument = click.argument(
    "folder", required=False, default=".", type=click.Path(path_type=Path, file_okay=False)
)


@click.group()
def lab() -> None:
    """Check lab.yml, from which members join a lab."""


@lab.command("check")
@folder_argument
@verb
def check(console: Console, folder: Path) -> int:
    """Check a lab's repository: lab.yml, nodes.yml, environments and locks, runners.yml.

    For the lab's CI: the exit code is 1 if something is wrong. Contacts no host and no registry: that
    is `provision join --dry-run`.
    """
    from provision.verbs.lab import check as command
    from provision.verbs.lab.output import check_lines

    folder = folder.absolute()
    checks = command.check(context_of(console, folder / "envs"), folder)
    console.result("lab-check", {"checks": checks}, check_lines(checks))
    return 1 if any(check.verdict == "fail" for check in checks) else 0
