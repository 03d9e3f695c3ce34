"""How an environment's image is run: printed for others, or as the command line for this machine's engine."""

from __future__ import annotations

import os
from collections.abc import Sequence

from provision import image as images
from provision import render
from provision.commands.plan import BuildRequest, Context, Plan, plan
from provision.core.errors import InvalidSpec


def image_contract(
    context: Context,
    request: BuildRequest,
    format: images.RunFormat,
    asked: images.RunOptions,
    command: Sequence[str],
    remake: Sequence[str],
) -> str:
    """`provision image contract`: how an environment's image is run, for one kind of engine. The lock decides its name."""
    images.check_run_options(format, asked, command)
    wanted = plan(context, request)
    values = images.contract_context(
        wanted.resolution, _image_reference(wanted, asked), command, asked
    )
    return render.render_contract(format, values, remake=remake, templates=wanted.templates)


def notebook(
    context: Context, request: BuildRequest, port: int, address: str
) -> images.NotebookServer:
    """The server of notebooks that an environment's lock holds, as it is to be reached. InvalidSpec where it holds none."""
    wanted = plan(context, request)
    if wanted.lock is None:
        raise InvalidSpec(
            f"{wanted.name} has no lock, which names its packages.",
            advice=f"Run `provision build {wanted.name}` first.",
        )
    return images.find_notebook_server(wanted.lock, port=port, address=address)


def run_argv(
    context: Context,
    request: BuildRequest,
    asked: images.RunOptions,
    command: Sequence[str],
    *,
    terminal: bool,
    serving: images.NotebookServer | None = None,
) -> list[str]:
    """`provision image run`: the argv by which this engine runs the image. GPUs are left out, and that is said, where it has none.

    serving: instead of a command, notebooks; the token is taken from the environment of whoever runs the argv.
    """
    wanted = plan(context, request)
    client = images.require_engine(
        f"see `provision image contract {wanted.name}` for how others run it"
    )
    reference = _image_reference(wanted, asked)
    without = images.unmet_requirements(client, reference)
    if "gpus" in without and wanted.resolution.cuda is not None:
        context.progress.warn(
            "this engine has no NVIDIA runtime: the container gets no GPUs, and pins no memory"
        )
    flags = images.docker_arguments(wanted.resolution, asked, without=without)
    if serving is not None:
        on_host = any(
            need.what == "network" for need in images.run_requirements(wanted.resolution, asked)
        )
        flags, command = (
            [*flags, *serving.flags(host_network=on_host)],
            serving.command(host_network=on_host),
        )
    if terminal:
        flags = ["--tty", *flags]
    return [
        "docker",
        *images.docker_cli_flags(os.environ),
        "run",
        "--rm",
        "--interactive",
        *flags,
        reference,
        *command,
    ]


def _image_reference(wanted: Plan, asked: images.RunOptions) -> str:
    if asked.reference is not None:
        return asked.reference
    if wanted.lock is None:
        raise InvalidSpec(
            f"{wanted.name} has no lock, which names its image.",
            advice=f"Run `provision build {wanted.name}` first.",
        )
    return images.image_reference(wanted.name, wanted.lock)
