"""`provision matrix` and what lies below it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from provision.cli.options import common, verb
from provision.model import PLATFORMS

if TYPE_CHECKING:
    from provision.console import Console


@click.group(invoke_without_command=True)
@click.option("--torch", metavar="EXPR", help="2, 2.3, 2.3.1, '>=2.3,<2.6' or latest.")
@click.option("--cuda", metavar="X.Y", help="CUDA 12.1, or 12 for every 12.x.")
@click.option("--python", metavar="X.Y", help="Built for this Python.")
@click.option("--gpu", multiple=True, metavar="GPU", help="Runs on this GPU: sm_90, 9.0, H100, or nvidia-smi's name. May be repeated.")
@click.option("--driver", metavar="VERSION", help="Runs with this NVIDIA driver: 535, or 535.129.03.")
@click.option("--glibc", metavar="X.Y", help="Runs with this glibc.")
@click.option("--platform", multiple=True, type=click.Choice(PLATFORMS), help="For this platform.")
@click.option("--source", multiple=True, type=click.Choice(["wheels", "pytorch", "conda-forge"]), help="From this source.")
@click.option("--nccl", metavar="VERSION", help="Carries this NCCL, or can be given it: 2.27 or 2.27.5.")
@click.option("--unknown", is_flag=True, help="Also show builds that might fit, where no source says.")
@click.option(
    "--format", type=click.Choice(["table", "json", "csv", "markdown", "html"]), default="table", show_default=True, help="How it is shown."
)
@common
@click.pass_context
def matrix(context: click.Context, /, **options: Any) -> None:
    """Which PyTorch builds exist: torch, CUDA, source, platform, and what each needs.

    \b
    What runs on a V100 with driver 535:
    provision matrix --driver 535 --gpu V100
    """
    if context.invoked_subcommand is None:
        _show(**options)
    elif given := [name for name in options if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]:
        shown = ", ".join("--json" if name == "as_json" else f"--{name}" for name in given)
        raise click.UsageError(f"Write {shown} after `{context.invoked_subcommand}`, whose options these are.", context)


@verb
def _show(console: Console, envs: Path | None, format: str, **options: Any) -> int:
    from provision.workflows import matrix as workflow

    console.as_json = console.as_json or format == "json"
    found = workflow.show(options)
    console.result(found, "" if console.as_json else workflow.written(found, format))
    return 0
