"""`provision build`: every stage of an environment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provision.cli.options import (
    dry_run_option,
    prefix_option,
    relock_option,
)
from provision.cli.spec_options import build_request, name_argument, request_options
from provision.cli.verb import context_of, print_steps, verb

if TYPE_CHECKING:
    from provision.cli.console import Console
    from provision.workflow.plan import ImageMode


@click.command()
@name_argument
@request_options
@prefix_option
@click.option(
    "--image/--no-image",
    default=None,
    help="Require or skip the image.  [default: build it if a Docker engine answers]",
)
@click.option(
    "--smoke/--no-smoke",
    "is_tested",
    default=True,
    show_default=True,
    help="Run the DDP smoke test in the prefix and the image.",
)
@click.option(
    "--kernel/--no-kernel", default=True, show_default=True, help="Register a Jupyter kernel."
)
@relock_option
@dry_run_option
@verb
def build(
    console: Console,
    name: str | None,
    envs: Path | None,
    prefix: Path | None,
    dry_run: bool,
    **options: Any,
) -> int:
    """Build an environment: lock, prefix, image, smoke test, kernel.

    Reuses whatever already matches the request, and writes a passport: the record of what was
    built and measured.
    """
    from provision.cli import unchanged
    from provision.cli.console import json_object, output_width
    from provision.core.paths import default_folders

    with_kernel = options["kernel"]
    is_plain = not (dry_run or prefix or console.verbose or options["image"] is None)
    is_plain = is_plain and not any(options[key] for key in options if key != "kernel")
    folders, repeatable, width = default_folders(envs), name if is_plain else None, output_width()
    decisive = f"{with_kernel} {width}"
    run = unchanged.RepeatableRun(console, "build", folders, repeatable, decisive, installed=True)
    if run.repeat():
        return 0

    from provision.core.errors import CheckFailed
    from provision.core.host import this_machine
    from provision.verbs.build import build as command
    from provision.verbs.build.output import build_lines
    from provision.workflow import preview

    context = context_of(console, envs, options)
    image_modes: dict[bool | None, ImageMode] = {None: "auto", True: "demand", False: "skip"}
    request = build_request(
        name,
        options,
        prefix=prefix,
        image=image_modes[options["image"]],
        smoke=options["is_tested"],
        kernel=with_kernel,
        relock=options["relock"],
    )
    if dry_run:
        print_steps(console, preview.preview(context, request))
        return 0
    result = command.build(context, request)
    brief = console.shows_all_on_terminal
    lines = build_lines(result, this_machine(), width=width, brief=brief)
    if result.changed_nothing:
        run.record(json_object("build", result), lines)
    console.result("build", result, lines)
    if not result.failed:
        return 0
    error = CheckFailed(
        f"The smoke test failed. {' '.join(result.failed)}",
        advice=f"The evidence is in {result.folder / 'passport.json'}.",
    )
    console.error(error)
    return 1
