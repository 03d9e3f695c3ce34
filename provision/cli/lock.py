"""`provision lock`: making a lock, and the verbs that look at locks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provision.cli import build
from provision.cli.command_group import DefaultCommandGroup
from provision.cli.options import common, context_of, mirrored, verb

if TYPE_CHECKING:
    from provision.cli.console import Console

lock = DefaultCommandGroup(build.lock)


@lock.command()
@click.argument("targets", metavar="[NAME|FILE]...", nargs=-1)
@click.option(
    "--offline",
    is_flag=True,
    help="Ask nobody: leave out what channels and wheels say, and whether the files are still served.",
)
@mirrored
@common
@verb
def verify(
    console: Console, targets: tuple[str, ...], envs: Path | None, offline: bool, **options: Any
) -> int:
    """Check whether locks are sound, whoever made them. Exit code 1 if anything is wrong.

    Requirements, hashes, channels, duplicates, inputs, and whether each file is still served. Without a name, all of the envs folder.
    """
    from provision.cli.console import verified_lines
    from provision.commands.lock_inspect import verify_locks

    found = verify_locks(context_of(console, envs, **options), targets, offline=offline)
    for one in found:
        for note in one.notes:
            console.say(f"{one.lock}: {note}")
    console.result(found, verified_lines(found))
    return int(any(one.findings for one in found))


@lock.command()
@click.argument("before", metavar="NAME|FILE")
@click.argument("after", metavar="NAME|FILE")
@click.option("--exit-code", is_flag=True, help="Exit with 1 if they differ.")
@common
@verb
def diff(console: Console, before: str, after: str, envs: Path | None, exit_code: bool) -> int:
    """Say what changed from one lock to another, package by package."""
    from provision.cli.console import compared_lines
    from provision.commands.lock_inspect import diff_locks

    found = diff_locks(context_of(console, envs), before, after)
    console.result(found, compared_lines(found))
    return int(exit_code and not found.same)


@lock.command()
@click.argument("target", metavar="NAME|FILE")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["explicit", "requirements", "pylock", "cyclonedx", "spdx"]),
    required=True,
    help="explicit: conda's list of files; requirements and pylock: the wheels, for pip and uv; cyclonedx and spdx: bills of materials.",
)
@click.option(
    "--platform",
    metavar="PLATFORM",
    help="Which of the lock's platforms.  [default: the only one, or linux-64]",
)
@click.option(
    "--licenses/--no-licenses",
    default=True,
    show_default=True,
    help="In a bill of materials, where the prefix tells them.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="File to write.  [default: standard output]",
)
@common
@verb
def export(
    console: Console, target: str, envs: Path | None, output: Path | None, **options: Any
) -> None:
    """Write a lock in another tool's format. The same lock gives the same bytes. What the format has no place for is said."""
    from provision.commands.lock_inspect import export_lock

    made = export_lock(context_of(console, envs), target, **options)
    for note in made.notes:
        console.say(f"{target}: {note}")
    told = {"left_out": made.left_out, "notes": made.notes}
    if output is None:
        return console.result({"text": made.text, **told}, made.text.rstrip("\n"))
    from provision.core.atomic import atomic_write

    atomic_write(output, made.text)
    return console.result({"path": output, **told}, f"wrote {output}")
