"""`provision add`, `remove` and `update`: the packages of an environment."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provision.cli.options import (
    build_env_option,
    dry_run_option,
    mirror_option,
    option_group,
)
from provision.cli.verb import context_of, verb

if TYPE_CHECKING:
    from provision.cli.console import Console
    from provision.verbs.change.change import ChangeResult

change_options = option_group(
    dry_run_option,
    mirror_option,
    build_env_option,
)


@click.command()
@click.argument("name")
@click.argument("requirements", metavar="REQUIREMENT...", nargs=-1)
@click.option("--conda", is_flag=True, help="Take the packages from conda instead of the index.")
@click.option(
    "-r",
    "--requirements",
    "files",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Add what a requirements.txt, or another file that `provision import` reads, requests. "
    "Repeatable.",
)
@click.option(
    "-e",
    "--editable",
    "editables",
    multiple=True,
    metavar="FOLDER",
    help="Install a project's folder as editable: changes in it take effect at once. Repeatable.",
)
@click.option(
    "-f",
    "--find-links",
    "pages",
    multiple=True,
    metavar="PAGE",
    help="Take the packages from the wheels that a page or folder lists. Repeatable.",
)
@click.option(
    "--extra-index-url",
    "indexes",
    multiple=True,
    metavar="URL",
    help="Take the packages from this index, and from no other. Repeatable.",
)
@change_options
@verb
def add(
    console: Console,
    name: str,
    requirements: tuple[str, ...],
    conda: bool,
    files: tuple[Path, ...],
    editables: tuple[str, ...],
    pages: tuple[str, ...],
    indexes: tuple[str, ...],
    envs: Path | None,
    dry_run: bool,
    **options: Any,
) -> None:
    """Add packages to an environment.

    REQUIREMENT is what a line of a requirements.txt may hold: a package with or without a version, a
    wheel, a project's folder (./mypkg, from which provision builds a wheel), or a git address
    (git+https://...@REV); both run code of the project. All other packages stay as locked. spec.yml,
    lock, prefix and kernel follow; if anything fails, they stay as they were.
    """
    from provision.core.errors import InvalidSpec
    from provision.verbs.change import change as command

    listed = list(requirements)
    for index in indexes:
        listed = [f"{text} --extra-index-url {shlex.quote(index)}" for text in listed]
    page_options = " ".join(f"-f {shlex.quote(page)}" for page in pages)
    if pages and len(listed) == 1:
        listed = [f"{listed[0]} {page_options}"]
    elif pages:  # each for the packages that it lists
        listed.append(page_options)
    listed += [f"-e {shlex.quote(folder)}" for folder in editables]
    if not listed and not files:
        raise InvalidSpec(
            "No package was named.", advice=f"For example: provision add {name} einops"
        )
    context = context_of(console, envs, options)
    result = command.add(context, name, listed, files=files, conda=conda, dry_run=dry_run)
    _print(console, result, dry_run)


@click.command()
@click.argument("name")
@click.argument("packages", metavar="PACKAGE...", nargs=-1, required=True)
@change_options
@verb
def remove(
    console: Console,
    name: str,
    packages: tuple[str, ...],
    envs: Path | None,
    dry_run: bool,
    **options: Any,
) -> None:
    """Remove packages from an environment.

    Packages that nothing else needs are removed too; all others stay as locked. (`provision env
    remove` removes a whole environment.)
    """
    from provision.verbs.change import change as command

    context = context_of(console, envs, options)
    changes = command.Change(removed=packages)
    result = command.change(context, name, changes, dry_run=dry_run)
    _print(console, result, dry_run)


@click.command()
@click.argument("name")
@click.argument("packages", metavar="[PACKAGE]...", nargs=-1)
@change_options
@verb
def update(
    console: Console,
    name: str,
    packages: tuple[str, ...],
    envs: Path | None,
    dry_run: bool,
    **options: Any,
) -> None:
    """Update packages of an environment; without names, all of them.

    They move to the newest versions that fit spec.yml; other packages move only if they cannot
    stay.
    """
    from provision.verbs.change import change as command

    context = context_of(console, envs, options)
    result = command.update(context, name, packages, dry_run=dry_run)
    _print(console, result, dry_run)


def _print(console: Console, result: ChangeResult, dry_run: bool) -> None:
    from provision.verbs.change.output import change_lines

    console.result("change", result, change_lines(result, dry_run=dry_run))
