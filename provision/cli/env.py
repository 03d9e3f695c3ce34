"""`provision env`: environments on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provision.cli.options import (
    build_request,
    common_options,
    context_of,
    dry_run_option,
    name_argument,
    no_wait_option,
    prefix_option,
    print_steps,
    relock_option,
    request_options,
    verb,
)

if TYPE_CHECKING:
    from provision.cli.console import Console


@click.group()
def env() -> None:
    """Create, list, remove and compare environments on this machine."""


@env.command("create")
@name_argument
@request_options
@prefix_option
@relock_option
@dry_run_option
@no_wait_option
@common_options
@verb
def create(
    console: Console,
    name: str | None,
    envs: Path | None,
    prefix: Path | None,
    dry_run: bool,
    **options: Any,
) -> None:
    """Install an environment from its lock.

    Makes the lock first if there is none.
    """
    from provision.commands import build
    from provision.commands import env as command

    context = context_of(console, envs, options)
    request = build_request(name, options, prefix=prefix, relock=options["relock"], image="skip")
    if dry_run:
        steps = build.preview(context, request)
        print_steps(console, [s for s in steps if s.stage in ("render", "lock", "prefix")])
        return
    installed, is_new = command.create(context, request)
    console.result(installed, f"{'created' if is_new else 'already exists'}: {installed.path}")


@env.command("list")
@common_options
@verb
def list_(console: Console, envs: Path | None) -> None:
    """List environments: prefix, lock state, kernel, smoke verdicts."""
    from provision.cli.console import table
    from provision.commands.env import environments

    listed = environments(context_of(console, envs))
    rows = []
    for row in listed:
        kernel = "yes" if row.kernel else "-"
        rows.append((row.name, str(row.prefix or "-"), row.lock, kernel, row.smoke or "-"))
    text = "no environments"
    if rows:
        text = table(rows, ("name", "prefix", "lock", "kernel", "smoke"))
    console.result(listed, text)


@env.command("remove")
@click.argument("name")
@dry_run_option
@no_wait_option
@common_options
@verb
def remove(console: Console, name: str, envs: Path | None, dry_run: bool, **options: Any) -> None:
    """Remove an environment's prefix, kernel, image and packs.

    Its folder in envs stays.
    """
    from provision.commands import env as command

    removed = command.remove(context_of(console, envs, options), name, dry_run=dry_run)
    verb_form = "would remove" if dry_run else "removed"
    console.result(
        {"removed": removed, "dry_run": dry_run}, [f"{verb_form} {product}" for product in removed]
    )


@env.command("diff")
@click.argument("name")
@click.option("--files", is_flag=True, help="Also hash every file (takes seconds per gigabyte).")
@prefix_option
@common_options
@verb
def diff(console: Console, name: str, envs: Path | None, files: bool, prefix: Path | None) -> int:
    """Compare an installed environment with its lock. The exit code is 1 if they differ."""
    from provision.commands.env import drift

    differences = drift(context_of(console, envs), name, files=files, path=prefix)
    lines = [f"{drift.kind:8} {drift.name}: {drift.detail}" for drift in differences]
    console.result(differences, lines or "no difference")
    return 1 if differences else 0
