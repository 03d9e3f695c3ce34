"""`provision env`: environments on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provision.cli.options import (
    build_env_option,
    dry_run_option,
    environment_argument,
    mirror_option,
    prefix_option,
    relock_option,
    yes_option,
)
from provision.cli.other_tools import GroupWithForeignVerbs
from provision.cli.verb import confirm, context_of, print_steps, verb

if TYPE_CHECKING:
    from provision.cli.console import Console
    from provision.verbs.env.env import Product


@click.group(cls=GroupWithForeignVerbs)
def env() -> None:
    """Create, list, remove and compare environments on this machine."""


@env.command("create")
@environment_argument
@mirror_option
@build_env_option
@prefix_option
@relock_option
@dry_run_option
@verb
def create(
    console: Console,
    name: str,
    envs: Path | None,
    prefix: Path | None,
    dry_run: bool,
    **options: Any,
) -> None:
    """Install an environment from its lock.

    Makes the lock first if there is none.
    """
    from provision.workflow.installed import create as create_prefix
    from provision.workflow.preview import preview

    context = context_of(console, envs, options)
    from provision.cli.spec_options import build_request

    request = build_request(name, options, prefix=prefix, relock=options["relock"], image="skip")
    if dry_run:
        lock, prefix_step, *_ = preview(context, request)
        print_steps(console, [lock, prefix_step])
        return
    installed, is_new = create_prefix(context, request)
    status = "created" if is_new else "already exists"
    console.result("env-create", installed, f"{status}: {installed.path}")


@env.command("list")
@click.option("--all", "every", is_flag=True, help="List the environments of all your projects.")
@verb
def list_(console: Console, envs: Path | None, every: bool) -> None:
    """List this project's environments: state, size, age, image, kernel, smoke verdicts.

    The state is `current`; `differs` (packages were changed by hand); `stale` (the lock or spec.yml
    is newer than what is installed); `damaged`; `no lock`; or `not installed`.
    """
    from provision.cli.console import output_width
    from provision.cli.text import environment_lines, home_path
    from provision.core.project import project_root
    from provision.workflow.environments import environments, environments_of_all

    context = context_of(console, envs)
    listed = environments_of_all(context) if every else environments(context)
    if not every:
        console.info(f"project {home_path(project_root(context.folders.envs))}")
    lines = environment_lines(listed, width=output_width())
    console.result("env-list", {"environments": listed}, lines)


@env.command("tree")
@click.argument("name")
@click.argument("package", required=False)
@verb
def tree(console: Console, name: str, package: str | None, envs: Path | None) -> None:
    """Show which package needs which.

    Lists what each requested package needs; with PACKAGE, what needs that package.
    """
    from provision.cli.console import output_width
    from provision.verbs.env.output import tree_lines
    from provision.verbs.env.tree import package_tree

    roots = package_tree(context_of(console, envs), name, package)
    console.result("env-tree", {"packages": roots}, tree_lines(roots, width=output_width()))


@env.command("remove")
@click.argument("name")
@yes_option
@dry_run_option
@verb
def remove(console: Console, name: str, envs: Path | None, yes: bool, dry_run: bool) -> int:
    """Remove an environment's prefix, kernel, image and packs.

    Lists what it would remove, with sizes, and asks. Its folder in envs stays.
    """
    from provision.cli.console import output_width
    from provision.cli.text import removal_lines
    from provision.verbs.env import env as command

    def lines(products: Sequence[Product], verb_form: str) -> list[str]:
        rows = ((item.kind, item.size, item.freed, item.what) for item in products)
        return removal_lines(rows, verb_form=verb_form, width=output_width())

    def ask(products: Sequence[Product]) -> bool:
        return confirm(f"Remove environment {name}?", lines(products, "would remove"), yes=yes)

    context = context_of(console, envs)
    if dry_run:
        removed, verb_form = command.products(context, name), "would remove"
    else:
        removed, verb_form = command.remove(context, name, confirm=ask), "removed"
    if not removed:
        console.info("nothing was removed")
    text = lines(removed, verb_form) if removed else ""
    console.result("env-remove", {"removed": removed, "dry_run": dry_run}, text)
    return 0 if removed else 1


@env.command("diff")
@click.argument("name")
@click.option("--deep", is_flag=True, help="Also hash every file (takes seconds per gigabyte).")
@prefix_option
@verb
def diff(console: Console, name: str, envs: Path | None, deep: bool, prefix: Path | None) -> int:
    """Compare an installed environment with its lock. The exit code is 1 if they differ."""
    from provision.verbs.env.env import drift

    differences = drift(context_of(console, envs), name, files=deep, path=prefix)
    lines = [f"{drift.kind:8} {drift.name}: {drift.detail}" for drift in differences]
    console.result("env-diff", {"differences": differences}, lines or "no difference")
    return 1 if differences else 0
