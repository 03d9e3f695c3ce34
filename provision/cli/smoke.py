"""`provision smoke`: the DDP smoke test of an environment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provision.cli.options import (
    build_request,
    common_options,
    context_of,
    name_argument,
    option_group,
    prefix_option,
    request_options,
    smoke_options,
    verb,
)

if TYPE_CHECKING:
    from provision.cli.console import Console
    from provision.core.types import Place

# What only `provision smoke` has; the names are those of SmokeRequest's fields.
full_smoke_options = option_group(
    click.option(
        "--device",
        type=click.Choice(["auto", "cpu", "cuda"]),
        default="auto",
        show_default=True,
        help="Device of the tensors; Gloo accepts GPU tensors too.",
    ),
    click.option("--full", is_flag=True, help="Test all collectives, types and sizes."),
    click.option(
        "--only",
        multiple=True,
        metavar="PHASE",
        help="Run only this phase, after facts and rendezvous. Repeatable.",
    ),
    click.option("--skip", multiple=True, metavar="PHASE", help="Skip this phase. Repeatable."),
    click.option(
        "--folder",
        type=click.Path(path_type=Path, file_okay=False, exists=True),
        metavar="DIR",
        help="Folder for the file and checkpoint tests, on the file system that jobs use.",
    ),
    click.option(
        "--deadline",
        "deadlines",
        multiple=True,
        metavar="[PHASE=]S",
        help="Seconds for a phase, or for every phase. Repeatable.",
    ),
    click.option(
        "--expect",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="File of expected bandwidths.  [default: published values of known hardware]",
    ),
    click.option(
        "--baseline",
        type=click.Choice(["save", "compare"]),
        help="Save the measured bandwidths, or compare with the saved ones.",
    ),
    click.option(
        "--out",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="Folder for the report, logs and stack traces.  [default: in the user's data folder]",
    ),
    click.option(
        "--inject",
        multiple=True,
        metavar="FAULT",
        help=(
            "Inject a fault, e.g. die:1:barrier, to see that the test reports it. An unknown "
            "FAULT lists all. Repeatable."
        ),
    ),
)
PLACES: dict[str, tuple[Place, ...]] = {
    "prefix": ("prefix",),
    "image": ("image",),
    "both": ("prefix", "image"),
}


@click.command()
@name_argument
@request_options
@prefix_option
@click.option(
    "--in",
    "place",
    type=click.Choice(list(PLACES)),
    default="prefix",
    show_default=True,
    help="What to test.",
)
@click.option(
    "--junit",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also write the result as JUnit XML, for CI services.",
)
@smoke_options
@full_smoke_options
@common_options
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
    """Run the DDP smoke test. The exit code is 1 unless it passes.

    Phases: facts, rendezvous, barrier, collectives, compute, DDP, file system, checkpoint.
    """
    from provision.cli.format.environment import smoke_lines
    from provision.commands import smoke as command
    from provision.commands.smoke_runner import failures

    context = context_of(console, envs, options)
    request = build_request(name, options, prefix=prefix)
    results = command.smoke(context, request, PLACES[place], junit)
    console.result(results, [line for result in results for line in smoke_lines(result)])
    return 1 if failures(results) else 0
