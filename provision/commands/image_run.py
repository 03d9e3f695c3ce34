"""`provision image contract` and `image run`: printing how an image is run, and running it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from provision import image as images
from provision import render
from provision.commands.context import Context
from provision.commands.plan import BuildRequest, Plan, make_plan
from provision.core.errors import InvalidSpec


def image_contract(
    context: Context,
    request: BuildRequest,
    format: images.RunFormat,
    options: images.RunOptions,
    command: Sequence[str],
    remake: Sequence[str],
) -> str:
    """How to run an environment's image, as text for one kind of engine.

    The lock decides the image's name.
    """
    images.check_run_options(format, options, command)
    plan = make_plan(context, request)
    reference = _image_reference(plan, options)
    values = images.contract_context(plan.resolution, reference, command, options)
    return render.render_contract(format, values, remake=remake, templates=plan.templates)


def notebook_server(plan: Plan, port: int, address: str) -> images.NotebookServer:
    """The notebook server of an environment's lock, at an address.

    Raises InvalidSpec if the lock holds none.
    """
    if plan.lock is None:
        raise InvalidSpec(
            f"{plan.name} has no lock, which names its packages.",
            advice=f"Run `provision build {plan.name}` first.",
        )
    return images.find_notebook_server(plan.lock, port=port, address=address)


def run_argv(
    context: Context,
    plan: Plan,
    options: images.RunOptions,
    command: Sequence[str],
    *,
    terminal: bool,
    server: images.NotebookServer | None = None,
) -> list[str]:
    """The argv with which this engine runs the image.

    Without an NVIDIA runtime it leaves out GPUs, and warns.

    server: run this instead of a command; it reads its token from the environment of whoever runs
    the argv.
    """
    client = images.require_engine(
        f"`provision image contract {plan.name}` shows how other engines run it"
    )
    reference = _image_reference(plan, options)
    unmet = images.unmet_requirements(client, reference)
    if "gpus" in unmet and plan.resolution.cuda is not None:
        context.progress.warn(
            "this engine has no NVIDIA runtime: the container gets no GPUs and pins no memory"
        )
    flags = images.docker_arguments(plan.resolution, options, without=unmet)
    if server is not None:
        requirements = images.run_requirements(plan.resolution, options)
        host_network = any(requirement.what == "network" for requirement in requirements)
        flags = [*flags, *server.flags(host_network=host_network)]
        command = server.command(host_network=host_network)
    if terminal:
        flags = ["--tty", *flags]
    docker = ["docker", *images.docker_cli_flags(os.environ)]
    return [*docker, "run", "--rm", "--interactive", *flags, reference, *command]


def _image_reference(plan: Plan, options: images.RunOptions) -> str:
    if options.reference is not None:
        return options.reference
    if plan.lock is None:
        raise InvalidSpec(
            f"{plan.name} has no lock, which names its image.",
            advice=f"Run `provision build {plan.name}` first.",
        )
    return images.image_reference(plan.name, plan.lock)
