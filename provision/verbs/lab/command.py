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

    For the lab's CI: the exit code is 1 if something is wrong. Contacts no host, scheduler or
    registry: `provision join --dry-run` does.
    """
    from provision.verbs.lab import check as command

    folder = folder.absolute()
    lab, problems = command.check(context_of(console, folder / "envs"), folder)
    lines = []
    for problem in problems:
        lines.append(f"{problem.subject}: {problem.message}")
        if problem.advice:
            lines.append(f"  > {problem.advice}")
    nothing = f"{lab.name}: nothing wrong; hosts and clusters were not asked"
    console.result("lab-check", {"problems": problems}, lines or nothing)
    return 1 if problems else 0
