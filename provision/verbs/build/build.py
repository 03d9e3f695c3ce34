"""`provision build`: every stage in order, each timed, and the passport of the result."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from provision.adapters.docker import connect_engine, require_engine
from provision.core.errors import ToolMissing
from provision.core.types import (
    BuildResult,
    Image,
    Kernel,
    Lock,
    Prefix,
    Progress,
    SmokeResult,
    SmokeTarget,
    StageRecord,
    StageStatus,
)
from provision.environment import kernel as kernels
from provision.image.base import is_on_disk
from provision.workflow.context import Context, reported_steps
from provision.workflow.ensure import (
    check_buildable,
    ensure_kernel,
    ensure_lock,
    ensure_prefix,
    locked_plan,
)
from provision.workflow.image.image import ensure_base, ensure_image
from provision.workflow.passport import write_passport
from provision.workflow.plan import NO_ENGINE, NO_IMAGE, NO_SMOKE, BuildRequest, Plan
from provision.workflow.smoke import runner as smoke_runner
from provision.workflow.smoke.smoke import smoke_in


class Stages:
    """Times the stages of a build, and records and reports what each did."""

    def __init__(self, progress: Progress, steps: list[str]) -> None:
        self.records: list[StageRecord] = []
        self._progress, self._steps = progress, steps
        self._start = time.perf_counter()

    def add(self, stage: str, status: StageStatus | bool, detail: str) -> None:
        """Record a stage that ended now, and began when the one before it ended. status: True if it
        made something, False if that was there."""
        end = time.perf_counter()
        if isinstance(status, bool):
            status = "made" if status else "kept"
        record = StageRecord(stage=stage, status=status, detail=detail, seconds=end - self._start)
        self._start = end
        self.records.append(record)
        if status == "made":
            self._steps.append(f"{stage} made")
        self._progress.info(f"{stage}: {status}, {detail} ({record.seconds:.1f} s)")


def wanted_engine(request: BuildRequest) -> Any | None:
    """The Docker engine, if the request wants an image and one answers. Raises ToolMissing if it
    demands one and none does."""
    if request.image == "demand":
        return require_engine()
    if request.image == "auto":
        return connect_engine()[0]
    return None


def build(context: Context, request: BuildRequest) -> BuildResult:
    """Run every stage; reuse what already matches the request.

    A smoke test that fails still leaves a passport that says so; see `failed` in the result.
    """
    client = wanted_engine(request)
    with locked_plan(context, request) as plan:
        check_buildable(context, plan)
        if request.image == "demand":
            ensure_base(context, plan, client)
        with reported_steps(context.progress) as steps:
            return _run_stages(context, plan, client, Stages(context.progress, steps))


def _run_stages(context: Context, plan: Plan, client: Any | None, stages: Stages) -> BuildResult:
    plan, lock, is_new_lock, written = ensure_lock(context, plan)
    files = f"; wrote {', '.join(written)}" if written else ""
    stages.add("lock", is_new_lock, f"{len(lock.packages)} packages{files}")
    prefix, is_new = ensure_prefix(context, plan, lock)
    stages.add("prefix", is_new, str(prefix.path))
    image = _image_stage(context, plan, lock, prefix, client, stages)
    smoke = _smoke_stage(context, plan, prefix, image, client, stages)
    failed = smoke_runner.failures(smoke)
    kernel = _kernel_stage(plan, lock, prefix, stages, failed)
    result = write_passport(
        context,
        plan,
        lock,
        prefix,
        image=image,
        kernel=kernel,
        smoke=smoke,
        is_new_lock=is_new_lock,
    )
    return replace(result, failed=tuple(failed), stages=tuple(stages.records))


def _image_stage(
    context: Context,
    plan: Plan,
    lock: Lock,
    prefix: Prefix,
    client: Any | None,
    stages: Stages,
) -> Image | None:
    mode, spec = plan.request.image, plan.resolution.spec
    has_editables = any(package.is_editable for package in lock.packages)
    if mode == "skip":
        reason = NO_IMAGE
    elif mode == "auto" and has_editables and not spec.code:
        reason = "an image has the editable packages only with `code:` in spec.yml"
    elif client is None and not is_on_disk(spec.base):
        reason = NO_ENGINE
    else:
        try:
            image, is_new = ensure_image(context, plan, lock, prefix, client)
            stages.add("image", is_new, image.reference)
            return image
        except ToolMissing as error:
            if mode == "demand":
                raise
            context.progress.warn(f"no image was made: {error}")
            reason = error.message
    stages.add("image", "skipped", reason)
    return None


def _smoke_stage(
    context: Context,
    plan: Plan,
    prefix: Prefix,
    image: Image | None,
    client: Any | None,
    stages: Stages,
) -> tuple[SmokeResult, ...]:
    if not plan.request.smoke:
        stages.add("smoke", "skipped", NO_SMOKE)
        return ()
    targets: list[SmokeTarget] = ["prefix"]
    if image is not None and client is not None:
        targets.append("image")
    results = []
    for target in targets:
        context.progress.info(f"smoke test in the {target}")
        result = smoke_in(context, plan, target, prefix, image, client)
        stages.add(f"smoke ({target})", "ran", result.verdict)
        results.append(result)
    return tuple(results)


def _kernel_stage(
    plan: Plan, lock: Lock, prefix: Prefix, stages: Stages, failed: list[str]
) -> Kernel | None:
    step = plan.kernel_step(lock)
    reason = step.detail if step.action == "skip" else ""
    if plan.request.kernel and failed:
        reason = "the smoke test failed"
    # Without its launcher, a kernel that an earlier build registered could not start any more.
    elif plan.request.kernel and reason and kernels.remove_kernel_of(prefix):
        reason += "; the registered kernel was removed"
    if reason:
        stages.add("kernel", "skipped", reason)
        return None
    kernel, is_new = ensure_kernel(prefix, plan.kernel_title)
    stages.add("kernel", is_new, kernel.display_name)
    return kernel
