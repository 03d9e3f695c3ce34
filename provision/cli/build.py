"""Verbs that make products: build, render, lock, smoke."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provision.cli.options import (
    build_request,
    common,
    context_of,
    dry,
    every,
    name_argument,
    no_wait,
    prefix_option,
    relock_option,
    requests_of_all,
    show_outcomes,
    testing,
    testing_in_full,
    verb,
)
from provision.cli.spec_options import request_options

if TYPE_CHECKING:
    from provision.cli.console import Console
    from provision.commands.plan import Context, ImageMode


@click.command()
@name_argument
@request_options
@prefix_option
@click.option(
    "--image/--no-image",
    default=None,
    help="Demand or skip the image.  [default: when a Docker engine answers]",
)
@click.option(
    "--smoke/--no-smoke",
    default=True,
    show_default=True,
    help="Run the DDP smoke test in what was built.",
)
@click.option(
    "--kernel/--no-kernel", default=True, show_default=True, help="Register a Jupyter kernel."
)
@testing
@relock_option
@dry
@no_wait
@common
@verb
def build(
    console: Console,
    name: str | None,
    envs: Path | None,
    prefix: Path | None,
    dry_run: bool,
    **options: Any,
) -> int:
    """Build an environment, all of it: lock, prefix, image, smoke test, kernel, passport.

    NAME is an environment with a spec.yml in the envs folder; options override what it says.
    """
    from provision.commands import build as workflow

    context = context_of(
        console,
        envs,
        mirrors=options["mirrors"],
        alias=options["alias"],
        wait=not options["no_wait"],
    )
    images: dict[bool | None, ImageMode] = {None: "auto", True: "demand", False: "skip"}
    wish = build_request(
        name,
        options,
        prefix=prefix,
        image=images[options["image"]],
        smoke=options["smoke"],
        kernel=options["kernel"],
        relock=options["relock"],
    )
    if dry_run:
        from provision.commands.preview import build_preview

        steps = build_preview(context, wish)
        console.result(steps, [f"{step['stage']}: {step['would']}" for step in steps])
        return 0
    from provision.cli.console import build_summary
    from provision.core.errors import CheckFailed

    result = workflow.build(context, wish)
    console.result(result, build_summary(result, workflow.docker_run(result)))
    if result.failed:
        evidence = result.folder / "passport.json"
        console.error(
            CheckFailed(
                f"The smoke test failed. {' '.join(result.failed)}", advice=f"Evidence: {evidence}."
            ),
            as_object=False,
        )
    return 1 if result.failed else 0


@click.command()
@name_argument
@request_options
@click.option("--force", is_flag=True, help="Undo hand edits of generated files.")
@click.option(
    "--check",
    is_flag=True,
    help="Change nothing; show what differs, and end with 1 if anything does.",
)
@every
@dry
@no_wait
@common
@verb
def render(
    console: Console,
    name: str | None,
    envs: Path | None,
    force: bool,
    dry_run: bool,
    **options: Any,
) -> int | None:
    """Write environment.yml, virtual-packages.yml and (for a locked environment) Dockerfile from spec.yml and options."""
    from provision.commands import ensure as workflow

    context = context_of(
        console,
        envs,
        mirrors=options["mirrors"],
        alias=options["alias"],
        wait=not options["no_wait"],
    )
    if options["check"] or options["every"]:
        from provision.commands import batch

        if not options["every"]:
            return show_outcomes(console, [batch.check(context, build_request(name, options))])
        wishes = requests_of_all(context, name, options, force=force)
        return show_outcomes(
            console,
            batch.check_all(context, wishes)
            if options["check"]
            else batch.render_all(context, wishes, dry_run=dry_run),
        )
    wish = build_request(name, options, force=force)
    if dry_run:
        from provision.commands.plan import plan

        wanted = plan(context, wish)
        console.result(wanted.texts, "\n".join(wanted.texts.values()).rstrip())
        return None
    written = workflow.render_only(context, wish)
    console.result(
        {"written": written},
        [f"wrote {file}" for file in written] or ["nothing to write: all files are as rendered"],
    )
    return None


@click.command()
@name_argument
@request_options
@relock_option
@click.option(
    "--update",
    multiple=True,
    metavar="PKG",
    help="Move this package, and others only as far as they must; several times.",
)
@click.option(
    "--solver",
    type=click.Choice(["conda", "mamba", "micromamba"]),
    help="Solve conda's part with this executable, through the conda-lock command.  [default: built in]",
)
@every
@dry
@no_wait
@common
@verb
def lock(
    console: Console, name: str | None, envs: Path | None, dry_run: bool, **options: Any
) -> int | None:
    """Write conda-lock.yml: every package, conda and pip, by URL and hash."""
    from provision.commands import ensure as workflow
    from provision.commands.preview import lock_preview

    context = context_of(
        console,
        envs,
        mirrors=options["mirrors"],
        alias=options["alias"],
        wait=not options["no_wait"],
    )
    if options["update"]:
        _update(console, context, name, options, dry_run)
        return None
    if options["every"]:
        from provision.commands import batch

        return show_outcomes(
            console,
            batch.lock_all(
                context,
                requests_of_all(
                    context, name, options, relock=options["relock"], solver=options["solver"]
                ),
                dry_run=dry_run,
            ),
        )
    wish = build_request(name, options, relock=options["relock"], solver=options["solver"])
    if dry_run:
        packages = lock_preview(context, wish)
        several = len({package.platform for package in packages}) > 1
        lines = [
            f"{package.platform + '  ' if several else ''}{package.manager}  {package.name} {package.version} {package.build}".rstrip()
            for package in packages
        ]
        console.result(packages, lines)
        return None
    _, made, anew = workflow.lock_only(context, wish)
    from provision.lockfile import read_platforms

    seen = read_platforms(made.path) if len(made.platforms) > 1 else (made,)
    counts = {lock.platform: len(lock.packages) for lock in seen}
    told = {
        "path": made.path,
        "sha256": made.sha256,
        "packages": sum(counts.values()),
        "portable": made.portable,
        "made": anew,
    }
    said = ", ".join(f"{count} packages for {platform}" for platform, count in counts.items())
    word = "locked" if anew else "already locked"
    console.result(
        {**told, "platforms": counts},
        f"{word}: {said} in {made.path}" + ("" if made.portable else " (not portable)"),
    )
    return None


def _update(
    console: Console, context: Context, name: str | None, options: dict[str, Any], dry_run: bool
) -> None:
    from provision.cli.console import compared_lines
    from provision.commands.ensure import update_lock
    from provision.core.errors import InvalidSpec

    if beside := [option for option in ("relock", "every", "solver") if options[option]]:
        shown = " and ".join(f"--{option.replace('every', 'all')}" for option in beside)
        told = f"--update moves some packages of one lock, with the built-in solver, and {shown} was given too."
        raise InvalidSpec(told, advice="Leave one of them out.")
    _, compared = update_lock(
        context, build_request(name, options), options["update"], dry_run=dry_run
    )
    console.result(compared, compared_lines(compared))


@click.command()
@name_argument
@request_options
@prefix_option
@click.option(
    "--in",
    "place",
    type=click.Choice(["prefix", "image", "both"]),
    default="prefix",
    show_default=True,
    help="Where to test.",
)
@click.option(
    "--junit",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the result as JUnit XML too, for CI services.",
)
@testing
@testing_in_full
@common
@verb
def smoke(
    console: Console,
    name: str | None,
    envs: Path | None,
    prefix: Path | None,
    place: str,
    junit: Path | None,
    **options: Any,
) -> int:
    """Run the DDP smoke test: facts, rendezvous, barrier, collectives, compute, DDP, file system, checkpoint.

    Exit code 1 unless it passes.
    """
    from provision.cli.console import smoke_lines
    from provision.commands import env as workflow
    from provision.commands.smoke_runner import failures

    context = context_of(console, envs, mirrors=options["mirrors"], alias=options["alias"])
    places: Any = {"prefix": ("prefix",), "image": ("image",), "both": ("prefix", "image")}[place]
    results = workflow.smoke(context, build_request(name, options, prefix=prefix), places, junit)
    lines = [line for found in results for line in smoke_lines(found)]
    console.result(results, lines)
    return 1 if failures(results) else 0
