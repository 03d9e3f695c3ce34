"""`provision image build`, and the questions about a job's image."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from provision import launch, render
from provision import lockfile as locks
from provision.adapters.docker import connect_engine, require_engine
from provision.core.errors import InvalidSpec
from provision.core.platforms import Platform, build_platform
from provision.core.prefix_registry import prefix_path
from provision.core.types import Image
from provision.image.export import check_output, export_image
from provision.workflow.context import Context, reported_steps
from provision.workflow.ensure import (
    check_buildable,
    check_prefix_path,
    ensure_prefix,
    locked_plan,
    require_existing_lock,
)
from provision.workflow.image.code import require_script
from provision.workflow.image.image import (
    ALTERNATIVE,
    ensure_base,
    ensure_image,
    image_reference,
    render_job,
)
from provision.workflow.passport import write_passport
from provision.workflow.plan import BuildRequest, Plan, PlanStep, make_plan


def goes_to_this_engine(outputs: Sequence[Path], platform: Platform) -> bool:
    """Whether an image gets into the engine: not where outputs are named, nor for another machine's
    platform."""
    return not outputs and platform == build_platform()


def preview(
    context: Context,
    request: BuildRequest,
    outputs: Sequence[Path],
    platform: Platform,
) -> PlanStep:
    """What `build` would do. Raises what `build` would raise before its first change."""
    if goes_to_this_engine(outputs, platform):
        require_engine(ALTERNATIVE)
    plan = make_plan(context, request)
    check_buildable(context, plan)
    for path in outputs:
        check_output(path)
    if platform != build_platform():
        locks.read(require_existing_lock(plan).path, platform)
    return plan.image_step(outputs)


def build(
    context: Context,
    request: BuildRequest,
    outputs: Sequence[Path],
    platform: Platform,
) -> tuple[Plan, Image, bool]:
    """The image of an environment with a current lock; whether it was made or loaded now.

    Installs a missing prefix.

    outputs: where the image goes instead of the engine. platform: one that the lock has packages for.
    """
    for path in outputs:
        check_output(path)
    to_engine = goes_to_this_engine(outputs, platform)
    is_foreign = platform != build_platform()
    client = None
    if to_engine:
        client = require_engine(ALTERNATIVE)
    elif not is_foreign:
        client = connect_engine()[0]
    with locked_plan(context, request) as plan:
        lock = require_existing_lock(plan)
        image_lock = locks.read(lock.path, platform)
        check_prefix_path(context, plan)
        ensure_base(context, plan, client, platform)
        prefix, _ = ensure_prefix(context, plan, lock)
        image, is_new = ensure_image(context, plan, image_lock, prefix, client, to_engine=to_engine)
        write_passport(context, plan, lock, prefix, image=None if is_foreign else image)
        with reported_steps(context.progress) as steps:
            for path in outputs:
                export_image(image, path)
                steps.append(f"wrote oci:{path}")
        return plan, image, is_new


def image_contract(
    context: Context,
    request: BuildRequest,
    format: launch.RunFormat | launch.FileFormat,
    options: launch.RunOptions,
    nodes: int,
    gpus: int | None,
    time_s: int | None,
    command: Sequence[str],
    remake: Sequence[str],
) -> str:
    """How to run a command in an environment's image, as text for one kind of engine; with the
    format sbatch in its prefix; with sif and sqsh, how to make the file that Apptainer or enroot runs.

    The lock decides the image's name.
    """
    plan = make_plan(context, request)
    if format == "sif" or format == "sqsh":
        if command or (nodes, gpus, time_s) != (1, None, None) or options != launch.RunOptions():
            raise InvalidSpec(
                f"{format} makes the file of an image, and runs nothing: it takes no command, and no "
                "options of a run.",
                advice="Leave them out; the formats apptainer and slurm-pyxis run the file.",
            )
        values = launch.file_context(plan.resolution, image_reference(plan, options))
        return render.render_contract(format, values, remake=remake, templates=plan.templates)
    environment: launch.Environment
    if format in launch.PREFIX_FORMATS:
        prefix = prefix_path(context.folders, plan.name)
        environment = launch.PrefixEnvironment(path=PurePosixPath(prefix))
    else:
        require_script(context, plan, command, options.mounts)
        environment = launch.ImageEnvironment(reference=image_reference(plan, options))
    job = launch.JobSpec(
        name=launch.dns_label(plan.name),
        command=tuple(command),
        environment=environment,
        nodes=nodes,
        gpus=gpus,
        time_s=time_s,
        lock=plan.lock.sha256 if plan.lock else None,
    )
    return render_job(plan, format, job, options, remake)
