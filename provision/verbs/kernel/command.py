"""`provision kernel`: environments as kernels of this user's Jupyter."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provision.cli.options import dry_run_option, environment_argument, prefix_option
from provision.cli.spec_options import build_request
from provision.cli.verb import context_of, verb

if TYPE_CHECKING:
    from provision.cli.console import Console


@click.group()
def kernel() -> None:
    """Add, list and remove the Jupyter kernels of environments."""


@kernel.command("add")
@environment_argument
@prefix_option
@dry_run_option
@verb
def add(
    console: Console,
    name: str,
    envs: Path | None,
    prefix: Path | None,
    dry_run: bool,
    **options: Any,
) -> None:
    """Register an environment with this user's Jupyter."""
    import json

    from provision.workflow import kernel

    context = context_of(console, envs, options)
    request = build_request(name, options, prefix=prefix)
    if dry_run:
        spec = asdict(kernel.preview_kernel(context, request))
        console.result("kernel-add-preview", {"kernel": spec}, json.dumps(spec, indent=1))
        return
    registered, is_new = kernel.add_kernel(context, request)
    status = "registered" if is_new else "already registered"
    text = f"{status}: {registered.display_name} ({registered.path})"
    console.result("kernel-add", registered, text)


@kernel.command("list")
@verb
def list_(console: Console, envs: Path | None) -> None:
    """List the Jupyter kernels that provision registered."""
    from provision.cli.console import table
    from provision.environment.kernel import list_kernels

    kernels = list_kernels()
    rows = [(kernel.name, kernel.display_name, str(kernel.prefix)) for kernel in kernels]
    text = table(rows, ("name", "shown as", "prefix")) if rows else "no kernels"
    console.result("kernel-list", {"kernels": kernels}, text)


@kernel.command("remove")
@click.argument("name")
@dry_run_option
@verb
def remove(console: Console, name: str, envs: Path | None, dry_run: bool) -> None:
    """Remove a Jupyter kernel that provision registered."""
    from provision.core.paths import default_folders
    from provision.core.prefix_registry import prefix_path
    from provision.environment import kernel as kernels

    prefix = prefix_path(default_folders(envs), name)
    path = kernels.find(name, prefix).path if dry_run else kernels.remove(name, prefix)
    verb_form = "would remove" if dry_run else "removed"
    console.result("kernel-remove", {"removed": path, "dry_run": dry_run}, f"{verb_form} {path}")
