"""Verbs about what is there: env, kernel, passport, channel, completion."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provision.cli.options import (
    build_request,
    common,
    context_of,
    dry,
    mirrored,
    name_argument,
    no_wait,
    prefix_option,
    relock_option,
    verb,
)
from provision.cli.spec_options import request_options

if TYPE_CHECKING:
    from provision.cli.console import Console


@click.group()
def env() -> None:
    """Environments on this machine: create, list, remove, diff."""


@env.command("create")
@name_argument
@request_options
@prefix_option
@relock_option
@dry
@no_wait
@common
@verb
def env_create(
    console: Console,
    name: str | None,
    envs: Path | None,
    prefix: Path | None,
    dry_run: bool,
    **options: Any,
) -> None:
    """Install an environment from its lock (which is made if there is none)."""
    from provision.commands import ensure as workflow

    context = context_of(
        console,
        envs,
        mirrors=options["mirrors"],
        alias=options["alias"],
        wait=not options["no_wait"],
    )
    request = build_request(name, options, prefix=prefix, relock=options["relock"])
    if dry_run:
        from provision.commands.preview import build_preview

        steps = [
            step
            for step in build_preview(context, request)
            if step["stage"] in ("render", "lock", "prefix")
        ]
        return console.result(steps, [f"{step['stage']}: {step['would']}" for step in steps])
    made, anew = workflow.create(context, request)
    return console.result(made, f"{'created' if anew else 'already there'}: {made.path}")


@env.command("list")
@common
@verb
def env_list(console: Console, envs: Path | None) -> None:
    """List environments: where each prefix is, whether it fits its lock, whether it has a kernel, how its smoke test went."""
    from provision.cli.console import table
    from provision.commands.env import environments

    found = environments(context_of(console, envs))
    rows = [
        (e.name, str(e.prefix or "-"), e.lock, "yes" if e.kernel else "-", e.smoke or "-")
        for e in found
    ]
    return console.result(
        found,
        table(rows, ("name", "prefix", "lock", "kernel", "smoke")) if rows else "no environments",
    )


@env.command("remove")
@click.argument("name")
@dry
@no_wait
@common
@verb
def env_remove(
    console: Console, name: str, envs: Path | None, dry_run: bool, no_wait: bool
) -> None:
    """Remove an environment's prefix, kernel and image from this machine. Its folder in envs stays."""
    from provision.commands.env import remove

    gone = remove(context_of(console, envs, wait=not no_wait), name, dry_run=dry_run)
    return console.result(
        {"removed": gone, "dry_run": dry_run},
        [f"{'would remove' if dry_run else 'removed'} {what}" for what in gone],
    )


@env.command("diff")
@click.argument("name")
@click.option("--files", is_flag=True, help="Also hash every file (seconds per gigabyte).")
@prefix_option
@common
@verb
def env_diff(
    console: Console, name: str, envs: Path | None, files: bool, prefix: Path | None
) -> int:
    """Compare an environment with its lock. Exit code 1 if they differ."""
    from provision.commands.env import drift

    found = drift(context_of(console, envs), name, files=files, asked=prefix)
    console.result(
        found, [f"{one.kind:8} {one.name}: {one.detail}" for one in found] or "no difference"
    )
    return 1 if found else 0


@click.group()
def kernel() -> None:
    """Jupyter kernels of environments."""


@kernel.command("add")
@name_argument
@request_options
@prefix_option
@dry
@common
@verb
def kernel_add(
    console: Console,
    name: str | None,
    envs: Path | None,
    prefix: Path | None,
    dry_run: bool,
    **options: Any,
) -> None:
    """Register an environment with this user's Jupyter."""
    from provision.commands import env as workflow

    context = context_of(console, envs, mirrors=options["mirrors"], alias=options["alias"])
    if dry_run:
        text = workflow.preview_kernel(context, build_request(name, options, prefix=prefix))
        import json

        return console.result(text, json.dumps(text, indent=1))
    made, anew = workflow.add_kernel(context, build_request(name, options, prefix=prefix))
    return console.result(
        made, f"{'registered' if anew else 'already registered'}: {made.display_name} ({made.path})"
    )


@kernel.command("list")
@common
@verb
def kernel_list(console: Console, envs: Path | None) -> None:
    """List the Jupyter kernels that provision made."""
    from provision.cli.console import table
    from provision.environment.kernel import list_kernels

    found = list_kernels()
    rows = [(one.name, one.display_name, str(one.prefix)) for one in found]
    return console.result(
        found, table(rows, ("name", "shown as", "prefix")) if rows else "no kernels"
    )


@kernel.command("remove")
@click.argument("name")
@dry
@common
@verb
def kernel_remove(console: Console, name: str, envs: Path | None, dry_run: bool) -> None:
    """Remove a Jupyter kernel that provision made."""
    from provision.environment import kernel as kernels

    path = kernels.find(name).path if dry_run else kernels.remove(name)
    return console.result(
        {"removed": path, "dry_run": dry_run}, f"{'would remove' if dry_run else 'removed'} {path}"
    )


@click.group()
def passport() -> None:
    """Evidence of what was built and measured."""


@passport.command("show")
@click.argument("name")
@common
@verb
def passport_show(console: Console, name: str, envs: Path | None) -> None:
    """Show an environment's passport: request, reasons, lock, image, measured verdicts."""
    from provision.cli.console import passport_lines
    from provision.commands.env import read_passport

    found = read_passport(context_of(console, envs), name)
    return console.result(found, passport_lines(found))


@click.group()
def channel() -> None:
    """Local conda channels."""


@channel.command("bootstrap")
@click.option(
    "--again", is_flag=True, help="Package the interpreter anew even if its version is there."
)
@mirrored
@dry
@no_wait
@common
@verb
def channel_bootstrap(
    console: Console, envs: Path | None, again: bool, dry_run: bool, no_wait: bool, **options: Any
) -> None:
    """Package this machine's Python and pip into a local channel, for networks where no channel answers."""
    from provision.channel import read_host_python
    from provision.commands.ensure import bootstrap

    context = context_of(console, envs, **options, wait=not no_wait)
    if dry_run:
        found = read_host_python()
        return console.result(
            found,
            f"would package Python {found.version} ({found.executable}) into {context.where.channels}",
        )
    made = bootstrap(context, context.where.channels, again=again)
    return console.result(made, f"Python {made.python} in {made.url} (needs glibc {made.glibc})")


@channel.command("mirror")
@click.argument("targets", metavar="NAME|FILE...", nargs=-1, required=True)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--platform",
    "platforms",
    multiple=True,
    metavar="PLATFORM",
    help="Only these of the locks' platforms.  [default: all]",
)
@click.option("--prune", is_flag=True, help="Remove what none of these locks needs.")
@mirrored
@dry
@no_wait
@common
@verb
def channel_mirror(
    console: Console,
    targets: tuple[str, ...],
    folder: Path,
    envs: Path | None,
    platforms: tuple[str, ...],
    prune: bool,
    dry_run: bool,
    no_wait: bool,
    **options: Any,
) -> None:
    """Download all that locks name into DIR: conda packages as channels, wheels as an index. `--mirror DIR` then needs no network.

    What is there already is checked and kept; what was interrupted goes on where it stopped.
    """
    from provision.cli.console import mirrored_lines
    from provision.commands.mirror import mirror, preview

    context = context_of(console, envs, **options, wait=not no_wait)
    work = preview if dry_run else mirror
    found = work(context, targets, folder, platforms=platforms, prune=prune)
    return console.result(found, mirrored_lines(found))
