"""`provision image build`, `contract` and `run`: making, describing and running an image.

`registry` pushes, `sbom` writes the SBOM.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from provision import launch, render
from provision import lockfile as locks
from provision.adapters import docker
from provision.adapters.docker import require_engine
from provision.core.container import WORKSPACE, brief_reference
from provision.core.errors import InvalidSpec, ToolMissing
from provision.core.paths import owner_writes_only
from provision.core.platforms import ARCHITECTURES, Platform, build_platform, image_folder
from provision.core.types import Image, Lock, Prefix
from provision.environment import prefix as prefixes
from provision.environment import runtime_package
from provision.image import config
from provision.image.base import BaseImage, chosen_base, is_on_disk
from provision.image.build import build_image, find_image
from provision.image.cache_key import Recipe
from provision.image.code import Code
from provision.image.config import creation_time, source_date_epoch
from provision.image.cuda_copies import base_cuda, cuda_copies
from provision.image.disk_base import read_disk_base
from provision.image.docker import find_engine_base, load_image, runnable_name, unmet_requirements
from provision.workflow.context import Context
from provision.workflow.image.code import image_code, require_script
from provision.workflow.plan import Plan, require_lock

# To an engine, for the error without one.
ALTERNATIVE = "name a path with --output"


@owner_writes_only()
def ensure_base(
    context: Context, plan: Plan, client: Any | None, platform: Platform | None = None
) -> None:
    """Pull a missing base, and read the code, before minutes of work on a prefix: raises what
    `ensure_image` would raise of them."""
    image_code(context, plan)
    _find_base(context, plan, client, platform or build_platform())


@owner_writes_only()
def ensure_image(
    context: Context,
    plan: Plan,
    lock: Lock,
    prefix: Prefix,
    client: Any | None,
    *,
    to_engine: bool = True,
) -> tuple[Image, bool]:
    """The image of a lock, loaded into the engine if there is one; whether anything was done.

    prefix: of the same lock, for this machine. If the lock is seen from another platform, its packages
    are unpacked, and their programs are not run.
    """
    code = image_code(context, plan)
    if code is None:
        locks.require_no_editables(lock, "an image without its code (`code:` in spec.yml)")
    else:
        context.progress.info(code.summary)
    layout = context.folders.images / image_folder(plan.name, lock.platform)
    recipe = _recipe(plan, lock, _find_base(context, plan, client, lock.platform), code)
    image = find_image(recipe, layout, context.progress)
    is_new = image is None
    if image is None:
        locks.require_complete(lock, plan.pins)
        _warn_of_cuda_copies(context, plan, lock, recipe.base)

        def install(staging: Path) -> None:
            prefixes.install_for_image(
                lock, staging, prefix, context.folders, context.progress, context.mirrors
            )

        image = build_image(
            recipe,
            layout=layout,
            install=install,
            byte_code=None if recipe.built_on else prefix.path,
            progress=context.progress,
        )
    is_loaded = False
    if client is not None and to_engine:
        is_loaded = load_image(image, client, context.progress)
    return image, is_new or is_loaded


def _warn_of_cuda_copies(context: Context, plan: Plan, lock: Lock, base: BaseImage) -> None:
    copies = cuda_copies(lock.packages)
    if copies is not None:
        context.progress.warn(copies)
    version = base_cuda(base.environment)
    if version is not None and plan.resolution.cuda is not None:
        context.progress.warn(
            f"the base {base.reference} brings CUDA {version}, and the environment has its own: a base "
            "without CUDA makes a smaller image"
        )


def _recipe(plan: Plan, lock: Lock, base: BaseImage, code: Code | None) -> Recipe:
    return Recipe(
        code=code,
        resolution=plan.resolution,
        lock=lock,
        base=base,
        runtime=runtime_package.load().files,
        epoch=source_date_epoch(os.environ),
        created=creation_time(os.environ, lock, code.tree.committed if code else None),
        built_on=None if lock.platform == build_platform() else build_platform(),
    )


def _find_base(context: Context, plan: Plan, client: Any | None, platform: Platform) -> BaseImage:
    """The base image, on disk or in the engine, which pulls it if needed."""
    reference = plan.resolution.spec.base
    if reference is not None and is_on_disk(reference):
        return read_disk_base(reference, platform)
    if client is None or platform != build_platform():
        name = brief_reference(chosen_base(reference))
        architecture = ARCHITECTURES[platform]
        raise ToolMissing(
            f"No Docker engine of this machine has the base image {name} for {platform}.",
            advice=f"`skopeo copy --override-arch {architecture} docker://{name} oci:DIR` puts it on "
            "disk; --base oci:DIR names it.",
        )
    return find_engine_base(client, reference, context.progress)


def render_job(
    plan: Plan,
    format: launch.JobFormat,
    job: launch.JobSpec,
    options: launch.RunOptions,
    remake: Sequence[str],
) -> str:
    """A job as text for one kind of engine. Raises InvalidSpec for what it cannot express."""
    launch.check_job(job, plan.resolution)
    launch.check_contract(format, job, options)
    values = launch.contract_context(format, plan.resolution, job, options)
    return render.render_contract(format, values, remake=remake, templates=plan.templates)


def run_argv(
    context: Context,
    plan: Plan,
    options: launch.RunOptions,
    command: Sequence[str],
    *,
    terminal: bool | None = None,
    server: launch.NotebookServer | None = None,
    folder: Path | None = None,
) -> list[str]:
    """The argv with which this engine runs the image.

    Python code is started once for each GPU, as `image contract` starts it. Without an NVIDIA runtime
    there are no GPUs, which is a warning.

    server: run this instead of a command; it reads its token from the environment of the process
    that runs the argv. folder: the container's working folder, in which files are made as this
    user; None: the image's own. Raises InvalidSpec if the command's script is not in the container,
    or the server could not save.
    """
    client = require_engine(
        f"`provision image contract {plan.name}` shows how other engines run it"
    )
    reference = image_reference(plan, options)
    if options.reference is None:
        layout = context.folders.images / plan.name
        reference = runnable_name(client, layout, reference)
    if folder is not None:
        options = _in_folder(client, options, folder)
    unmet = unmet_requirements(client, reference, plan.name)
    require_script(context, plan, command, options.mounts)
    if "gpus" in unmet and plan.resolution.cuda is not None:
        context.progress.warn(
            "this engine has no NVIDIA runtime: the container gets no GPUs and pins no memory"
        )
    flags = launch.docker_arguments(plan.resolution, options, without=unmet)
    job = launch.JobSpec(
        name="run",
        command=tuple(command),
        environment=launch.ImageEnvironment(reference=reference),
        lock=plan.lock.sha256 if plan.lock else None,
    )
    if server is not None:
        workspace = _workspace(options.mounts)
        if workspace is not None:
            is_elsewhere = workspace.is_volume or not docker.sees_this_machine(client)
            if folder is not None and (
                workspace.mode == "ro" or not (is_elsewhere or os.access(workspace.source, os.W_OK))
            ):
                raise InvalidSpec(
                    f"Jupyter could not save in {workspace.source}: it is mounted read-only, it is not "
                    "there, or you may not write there.",
                    advice="Mount another folder at /workspace, or let it save in the container, "
                    "which is removed at the end, with --scratch.",
                )
            context.progress.info(f"Jupyter shows {workspace.source}, and saves there")
        host_network = options.host_network or plan.resolution.spec.infiniband
        flags = [*flags, *server.flags(host_network=host_network)]
        command = server.command(host_network=host_network)
    elif job.has_ranks:
        has_gpus = plan.resolution.cuda is not None and "gpus" not in unmet
        command = launch.rank_command(job, None if has_gpus else 0)
    if terminal is None:
        terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if terminal:
        flags = ["--tty", *flags]
    return ["docker", "run", "--rm", "--interactive", *flags, reference, *command]


def _workspace(mounts: Sequence[launch.ContainerMount]) -> launch.ContainerMount | None:
    """What is mounted as the container's working folder."""
    return next((mount for mount in mounts if mount.target.rstrip("/") == WORKSPACE), None)


def _in_folder(client: Any, options: launch.RunOptions, folder: Path) -> launch.RunOptions:
    """The options with a mounted working folder and its user, unless they name others."""
    mounts = options.mounts
    if _workspace(mounts) is None:
        if not docker.sees_this_machine(client):
            raise InvalidSpec(
                f"The Docker engine is on another machine, which does not have {folder}.",
                advice=f"--mount VOLUME:{WORKSPACE} keeps what is saved in a volume there; with "
                "--scratch nothing is kept.",
            )
        mounts = (launch.ContainerMount(source=str(folder), target=WORKSPACE), *mounts)
    user = options.user or docker.user_of_caller(client)
    return replace(options, mounts=mounts, user=user)


def image_reference(plan: Plan, options: launch.RunOptions) -> str:
    if options.reference is not None:
        return options.reference
    return config.image_reference(plan.name, require_lock(plan))
