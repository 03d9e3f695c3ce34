"""--sync and --locked: what a command does if the environment that it enters is not up to date."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from provision.cli.options import option_group
from provision.cli.verb import context_of

if TYPE_CHECKING:
    from provision.cli.console import Console
    from provision.core.types import Prefix

freshness_options = option_group(
    click.option(
        "--sync",
        is_flag=True,
        help="First update the lock from spec.yml, and the environment from the lock.",
    ),
    click.option(
        "--locked",
        is_flag=True,
        help=(
            "Fail with exit code 6 if the environment is not up to date; with --sync, if the "
            "lock is not."
        ),
    ),
)


def up_to_date(
    console: Console,
    name: str,
    *,
    envs: Path | None,
    path: Path | None = None,
    sync: bool,
    locked: bool,
    dry_run: bool = False,
) -> Prefix:
    """The prefix that a command enters: brought up to date if that is requested, else with a warning.

    path: of --prefix. Raises StaleLock for --locked, and as `require_prefix`.
    """
    from provision.core.errors import StaleLock, ToolMissing
    from provision.core.paths import default_folders
    from provision.workflow import freshness
    from provision.workflow.project import require_prefix

    folders = default_folders(envs)
    try:
        prefix = require_prefix(folders, name, path)
    except ToolMissing:
        if dry_run or not sync:
            raise
    else:
        reason = freshness.difference(folders, prefix)
        if not reason:
            return prefix
        if locked and not sync:
            raise StaleLock(
                f"{name} is not up to date: {reason}.",
                advice=f"`provision build {name}` brings it up to date, or says what you must decide.",
            )
        if dry_run or not (sync or freshness.is_synced(folders, prefix)):
            if not console.quiet:
                console.warn(f"{name} is not up to date: {reason} (--sync brings it up to date)")
            return prefix
    return freshness.sync(context_of(console, envs, {"mirrors": ()}), name, path, relock=not locked)
