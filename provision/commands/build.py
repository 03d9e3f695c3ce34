"""`provision build`: every stage in order, each timed, what is already true kept, and a passport for what came of it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from provision import image as images
from provision.adapters import conda
from provision.commands import smoke_runner
from provision.commands.ensure import check_place, edited_files, ensure_lock, ensure_prefix, planned
from provision.commands.image_registry import registry_base
from provision.commands.plan import BuildRequest, Context, Plan
from provision.core import atomic
from provision.core.errors import IntegrityError, InvalidSpec, ToolMissing
from provision.core.types import (
    PLATFORM,
    BuildResult,
    Image,
    Kernel,
    Lock,
    Place,
    Prefix,
    Progress,
    Resolution,
    SmokeResult,
    StageRecord,
    StageStatus,
)
from provision.environment import kernel as kernels
from provision.environment import passport, runtime_package
from provision.environment.activation import activation_variables

T = TypeVar("T")


class Stages:
    """Times the stages of a build and remembers what each did."""

    def __init__(self, progress: Progress) -> None:
        self.records: list[StageRecord] = []
        self._progress = progress

    def run(
        self, stage: str, work: Callable[[], T], describe: Callable[[T], tuple[StageStatus, str]]
    ) -> T:
        """describe: what became of it, and what to say of it."""
        start = time.perf_counter()
        result = work()
        self._add(stage, *describe(result), start)
        return result

    def skip(self, stage: str, why: str) -> None:
        self._add(stage, "skipped", why, time.perf_counter())

    def _add(self, stage: str, status: StageStatus, detail: str, start: float) -> None:
        record = StageRecord(
            stage=stage, status=status, detail=detail, seconds=time.perf_counter() - start
        )
        self.records.append(record)
        self._progress.say(f"{stage}: {status}, {detail} ({record.seconds:.1f} s)")


def made_or_kept(made: bool) -> StageStatus:
    return "made" if made else "kept"


def build(context: Context, request: BuildRequest) -> BuildResult:
    """`provision build`: every stage in order. What is already true to the request is kept. A smoke test that fails still leaves
    the passport that says so; see `failed` in the result."""
    client = engine_for(request)
    with planned(context, request) as wanted:
        check_place(wanted)
        if request.kernel:
            kernels.check_name(wanted.name)
        return _build(context, request, wanted, client)


def _build(
    context: Context, request: BuildRequest, wanted: Plan, client: Any | None
) -> BuildResult:
    stages = Stages(context.progress)
    if wanted.edited:
        context.progress.warn(f"{edited_files(wanted)} is edited by hand and used as it is")
    lock, _, _ = stages.run("lock", lambda: ensure_lock(context, wanted, request), _told_of_lock)
    prefix, _ = stages.run(
        "prefix",
        lambda: ensure_prefix(context, wanted, lock),
        lambda done: (made_or_kept(done[1]), str(done[0].path)),
    )
    image = _image_stage(context, request, wanted, lock, prefix, client, stages)
    smoke = _smoke_stage(context, request, wanted, prefix, image, client, stages)
    failed = smoke_runner.failures(smoke)
    kernel = _kernel_stage(request, wanted, lock, prefix, stages, failed)
    result = BuildResult(
        name=wanted.name,
        folder=wanted.folder,
        resolution=wanted.resolution,
        pins=wanted.standing_pins(),
        lock=lock,
        prefix=prefix,
        image=image,
        kernel=kernel,
        smoke=smoke,
        failed=tuple(failed),
        stages=tuple(stages.records),
    )
    write_passport(context, result, wanted.asked)
    return result


def _told_of_lock(done: tuple[Lock, bool, list[str]]) -> tuple[StageStatus, str]:
    lock, made, written = done
    files = f"; wrote {', '.join(written)}" if written else ""
    return made_or_kept(made), f"{len(lock.packages)} packages{files}"


def engine_for(request: BuildRequest) -> Any | None:
    """The Docker engine, if an image is wanted and one answers."""
    if request.image == "skip":
        return None
    return images.require_engine() if request.image == "demand" else images.connect_engine()[0]


def _image_stage(
    context: Context,
    request: BuildRequest,
    wanted: Plan,
    lock: Lock,
    prefix: Prefix,
    client: Any | None,
    stages: Stages,
) -> Image | None:
    if request.image == "skip" or (
        client is None and not images.is_on_disk(wanted.resolution.spec.base)
    ):
        stages.skip(
            "image", "--no-image" if request.image == "skip" else "no Docker engine answers"
        )
        return None
    try:
        return stages.run(
            "image",
            lambda: make_image(context, wanted, lock, prefix, client),
            lambda done: (made_or_kept(done[1]), done[0].reference),
        )[0]
    except ToolMissing as error:
        if request.image == "demand":
            raise
        context.progress.warn(f"no image was made: {error}")
        stages.skip("image", error.message)
        return None


def make_image(
    context: Context,
    wanted: Plan,
    lock: Lock,
    prefix: Prefix,
    client: Any | None,
    to_engine: bool = True,
) -> tuple[Image, bool]:
    """The image of a prefix, in the engine if there is one; whether anything was made or loaded."""
    if lock.platform != PLATFORM:
        raise InvalidSpec(
            f"Images are made for {PLATFORM} only, and {wanted.name} is for {lock.platform} here.",
            advice="Use --no-image.",
        )
    layout = context.where.images / wanted.name
    base = _base(context, wanted, client)

    def link(staging: Path) -> None:
        packages, final = lock.by("conda"), Path(images.PREFIX)
        conda.install_packages(
            packages,
            staging,
            final=final,
            cache=context.where.packages,
            progress=context.progress,
            mirrors=context.mirrors,
        )

    epoch = images.source_date_epoch(os.environ)
    runtime = runtime_package.load().files
    found = images.find_image(
        wanted.resolution,
        lock,
        base,
        layout=layout,
        runtime=runtime,
        epoch=epoch,
        progress=context.progress,
    )
    image = found or images.build_image(
        wanted.resolution,
        lock,
        prefix,
        base,
        layout=layout,
        runtime=runtime,
        link=link,
        progress=context.progress,
        epoch=epoch,
    )
    loaded = client is not None and to_engine and images.load_image(image, client, context.progress)
    return image, loaded or found is None


def _base(context: Context, wanted: Plan, client: Any | None) -> images.BaseImage:
    reference = wanted.resolution.spec.base
    if reference is not None and images.is_on_disk(reference):
        return images.read_disk_base(reference)
    return (
        registry_base(context, reference)
        if client is None
        else images.find_engine_base(client, reference, context.progress)
    )


def _smoke_stage(
    context: Context,
    request: BuildRequest,
    wanted: Plan,
    prefix: Prefix,
    image: Image | None,
    client: Any | None,
    stages: Stages,
) -> tuple[SmokeResult, ...]:
    if not request.smoke:
        stages.skip("smoke", "--no-smoke")
        return ()
    results = []
    places: tuple[Place, ...] = ("prefix", "image") if image and client else ("prefix",)
    for place in places:
        context.progress.say(f"smoke test in the {place}")
        results.append(
            stages.run(
                f"smoke ({place})",
                lambda: smoke_in(
                    context,
                    wanted.name,
                    place,  # noqa: B023 - it runs at once
                    wanted.resolution,
                    request.smoke_request,
                    prefix,
                    image,
                    client,
                ),
                lambda done: ("ran", done.verdict),
            )
        )
    return tuple(results)


def smoke_in(
    context: Context,
    name: str,
    place: Place,
    resolution: Resolution,
    request: smoke_runner.SmokeRequest,
    prefix: Prefix,
    image: Image | None,
    client: Any | None,
) -> SmokeResult:
    """The smoke test in a prefix or an image. What it leaves is kept, so that a finding can be looked into."""
    kept = context.where.smoke(name)
    out = (request.out.absolute() if request.out else kept) / place
    baseline = kept / f"baseline-{place}.json"
    kept.mkdir(parents=True, exist_ok=True)
    if request.out is None:
        shutil.rmtree(out, ignore_errors=True)  # of an earlier test, perhaps one that was killed
    if request.baseline == "compare" and not baseline.is_file():
        advice = "`provision smoke --baseline save`, on a day when all is well, makes one."
        raise ToolMissing(
            f"There is no baseline of the {place} of {name} on this machine.", advice=advice
        )
    if request.baseline == "compare":
        smoke_runner.check_baseline(baseline)
    if place == "prefix":
        return smoke_runner.in_prefix(
            prefix, resolution, request, activation_variables(prefix), out, baseline
        )
    assert image is not None and client is not None
    smoke_runner.remove_old_report(out)
    deadline_s = request.timeout_s + smoke_runner.STARTING_S
    wanted = baseline if request.baseline else None
    files = images.SmokeFiles(
        folder=request.folder, expect=request.expect, baseline=wanted, verb=request.baseline
    )
    argv = smoke_runner.arguments(resolution, request)
    status, output = images.run_smoke(
        client,
        image,
        argv,
        out,
        files=files,
        timeout_s=deadline_s,
        gpus=resolution.cuda is not None,
    )
    return smoke_runner.read_report(out, "image", status, output)


def _kernel_stage(
    request: BuildRequest,
    wanted: Plan,
    lock: Lock,
    prefix: Prefix,
    stages: Stages,
    failed: list[str],
) -> Kernel | None:
    shown = kernels.display_name(wanted.resolution)
    if not request.kernel or failed:
        stages.skip("kernel", "the smoke test failed" if failed else "--no-kernel")
        return None
    if lock.find(kernels.LAUNCHER) is None:
        why = f"no {kernels.LAUNCHER} in it" + (
            "" if wanted.resolution.spec.jupyter else " (--no-jupyter)"
        )
        stages.skip(
            "kernel",
            why + (", and the one there was removed" if kernels.remove_kernel_of(prefix) else ""),
        )
        return None
    return stages.run(
        "kernel",
        lambda: ensure_kernel(prefix, shown),
        lambda done: (made_or_kept(done[1]), done[0].display_name),
    )[0]


def ensure_kernel(prefix: Prefix, shown: str) -> tuple[Kernel, bool]:
    if kernels.is_current(prefix, shown):
        return Kernel(
            name=prefix.name,
            display_name=shown,
            path=kernels.kernelspec_folder(prefix.name),
            prefix=prefix.path,
        ), False
    return kernels.install(prefix, shown), True


def write_passport(context: Context, result: BuildResult, asked: Mapping[str, Any]) -> None:
    """Write the passport unless the one there says the same. A damaged one is replaced: it is evidence of nothing."""
    try:
        previous = passport.read(result.folder)
    except IntegrityError as error:
        context.progress.warn(f"{error.message} It is replaced.")
        previous = None
    stamped = passport.stamp(passport.compose(result, asked, previous), previous)
    if stamped is not None:
        atomic.atomic_write(result.folder / passport.FILE, passport.to_text(stamped))


def docker_run(result: BuildResult) -> list[str]:
    """The `docker run` line of what was built, with the flags that its contract asks for."""
    return images.run_command(result.resolution, result.image.reference) if result.image else []
