"""From a request to a plan: environment, build, Python, files, and what each stage will do.

Planning changes nothing. The same plan drives a command and describes it for `--dry-run`, so the
two cannot differ.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Literal

from provision import lockfile as locks
from provision import render
from provision.core import prefix_registry, settings
from provision.core.container import brief_reference
from provision.core.dataclass import frozen
from provision.core.errors import IntegrityError, InvalidSpec
from provision.core.project import project_title
from provision.core.spec_fields import SPEC_KEYS, Spec
from provision.core.types import Lock, Pin, Prefix, Resolution
from provision.environment import drift as drifts
from provision.environment import kernel, marker
from provision.environment import prefix as prefixes
from provision.image.base import chosen_base
from provision.image.config import dockerfile_context
from provision.resolver import spec as specs
from provision.workflow import pitfalls
from provision.workflow.context import Context, require_spec
from provision.workflow.index_facts import ensure_release
from provision.workflow.resolution import (
    PythonSource,
    ResolvedRequest,
    check_requirements,
    combine,
    resolve,
    resolve_with_python,
)
from provision.workflow.smoke.request import SmokeRequest, with_settings

ImageMode = Literal["auto", "demand", "skip"]  # auto: if a Docker engine answers
# Why a stage is skipped, in the plan and in the build.
NO_IMAGE, NO_SMOKE, NO_ENGINE = "--no-image", "--no-smoke", "no Docker engine answers"


@frozen
class BuildRequest:
    """What the command line requests: an environment, options over its spec.yml, and what to do."""

    name: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    prefix: Path | None = None
    image: ImageMode = "auto"
    smoke: bool = True
    kernel: bool = True
    relock: bool = False
    force: bool = False
    smoke_request: SmokeRequest = field(default_factory=SmokeRequest)
    # The text of spec.yml as it is to be, instead of the file's.
    spec_text: str | None = None
    # Set by `with_name`, where finding the name of a new environment took a resolution.
    resolved: ResolvedRequest | None = None

    def option_flags(self) -> dict[str, str]:
        """The options that were given a value: their keys, and how the command line has them."""
        flags = {}
        for key in SPEC_KEYS:
            value = self.options.get(key.name)
            if value in (None, (), []) or (key.kind == "switch" and not value):
                continue
            is_negative = key.kind == "flag" and not value
            flags[key.name] = key.negative_option if is_negative else key.option
        return flags


@frozen
class PlanStep:
    """What a command does in one stage."""

    stage: Literal["lock", "prefix", "image", "smoke", "kernel"]
    action: Literal["keep", "make", "run", "skip"]
    detail: str

    @property
    def would(self) -> str:
        """In words, for `--dry-run`."""
        if self.action == "keep":
            return f"nothing: {self.detail}"
        if self.action == "skip":
            return f"skip ({self.detail})"
        return self.detail


@frozen
class Plan:
    """A request worked out.

    spec_content: what spec.yml says once written. texts: the files that are locked.
    """

    request: BuildRequest
    folder: Path
    resolution: Resolution
    spec_content: Mapping[str, Any]
    texts: Mapping[str, str]
    inputs: locks.LockInputs
    lock: Lock | None
    lock_is_current: bool
    python_from: PythonSource
    prefix_path: Path
    templates: render.Templates
    # Settings of the smoke test that the lab or the user states for all environments.
    smoke_defaults: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.resolution.spec.name

    @property
    def pins(self) -> tuple[Pin, ...]:
        """What environment.yml requires, in its order."""
        return tuple(sorted(self.resolution.pins, key=lambda pin: pin.manager))

    @property
    def kernel_title(self) -> str:
        return kernel.display_name(self.resolution, project_title(self.folder.parent))

    @property
    def smoke_request(self) -> SmokeRequest:
        """How to test: what was requested, then the settings of the spec, then the lab's."""
        texts = (*self.smoke_defaults, *self.resolution.spec.smoke)
        return with_settings(self.request.smoke_request, texts)

    @property
    def current_lock(self) -> Lock | None:
        """The lock, if it was made from exactly these inputs."""
        return self.lock if self.lock_is_current else None

    @property
    def reusable_lock(self) -> Lock | None:
        """The lock that the command keeps; None if it solves anew."""
        return None if self.request.relock else self.current_lock

    def reusable_prefix(self, lock: Lock | None) -> Prefix | None:
        """The prefix, if it is exactly what this lock says."""
        prefix = prefixes.find(self.name, self.prefix_path)
        if lock is None or not drifts.is_current(prefix, lock):
            return None
        return prefix

    def steps(self) -> list[PlanStep]:
        """What `build` does, stage by stage. Asks no engine, and no solver."""
        lock = self.reusable_lock
        prefix = self.reusable_prefix(lock)
        smoke = PlanStep(stage="smoke", action="run", detail="test what was made")
        if not self.request.smoke:
            smoke = PlanStep(stage="smoke", action="skip", detail=NO_SMOKE)
        return [
            self.lock_step(),
            self.prefix_step(prefix),
            self.image_step(),
            smoke,
            self.kernel_step(lock, prefix),
        ]

    def input_texts(self) -> dict[str, str]:
        """The text of spec.yml, unless the user wrote it, and of the files that are locked."""
        texts = dict(self.texts)
        if render.file_state(self.folder / render.SPEC) != "edited":
            texts = {render.SPEC: render.render_spec(self.name, self.spec_content), **texts}
        return texts

    def dockerfile_texts(self, lock: Lock) -> dict[str, str]:
        values = dockerfile_context(self.resolution, lock)
        return render.render_dockerfile(self.name, values, self.templates)

    def lock_step(self) -> PlanStep:
        """What becomes of the lock, and of the files that are written with it."""
        lock = self.reusable_lock
        if lock is not None:
            detail = f"{len(lock.packages)} packages are locked"
            return PlanStep(stage="lock", action="keep", detail=detail)
        origin = "this machine"
        if self.python_from == "channel":
            origin = ", ".join(self.resolution.channels)
        detail = f"lock again in {self.folder}, with Python from {origin}"
        return PlanStep(stage="lock", action="make", detail=detail)

    def prefix_step(self, reusable: Prefix | None) -> PlanStep:
        """What becomes of the prefix. reusable: see `reusable_prefix`."""
        if reusable is not None:
            detail = f"{reusable.path} matches the lock"
            return PlanStep(stage="prefix", action="keep", detail=detail)
        detail = f"install {self.prefix_path}"
        added = marker.added_by_hand(self.prefix_path)
        if added:
            detail += f", without what was installed by hand: {', '.join(added)}"
        return PlanStep(stage="prefix", action="make", detail=detail)

    def image_step(self, outputs: Sequence[Path] = ()) -> PlanStep:
        """What becomes of the image; asks no engine.

        outputs: where `image build` puts the image.
        """
        if self.request.image == "skip":
            return PlanStep(stage="image", action="skip", detail=NO_IMAGE)
        base = brief_reference(chosen_base(self.resolution.spec.base))
        detail = f"make an image based on {base}, or keep one that is the same"
        paths = [f"write oci:{output}" for output in outputs]
        if self.request.image == "auto" and not paths:
            paths = ["if a Docker engine answers"]
        return PlanStep(stage="image", action="make", detail="; ".join([detail, *paths]))

    def kernel_step(self, lock: Lock | None, reusable: Prefix | None = None) -> PlanStep:
        """What becomes of the kernel with this lock; None: the lock is still to be solved."""
        if not self.request.kernel:
            return PlanStep(stage="kernel", action="skip", detail="--no-kernel")
        has_launcher = self.resolution.spec.jupyter
        if lock is not None:
            has_launcher = lock.find(kernel.LAUNCHER) is not None
        if not has_launcher:
            reason = f"no {kernel.LAUNCHER} in the lock"
            if not self.resolution.spec.jupyter:
                reason = "--no-jupyter"
            return PlanStep(stage="kernel", action="skip", detail=reason)
        title = self.kernel_title
        if reusable is not None and kernel.is_current(reusable, title):
            return PlanStep(stage="kernel", action="keep", detail=f"{title!r} is registered")
        condition = " if the smoke test passes" if self.request.smoke else ""
        return PlanStep(stage="kernel", action="make", detail=f"register {title!r}{condition}")


def with_name(context: Context, request: BuildRequest) -> BuildRequest:
    """The request with the name of its environment, so that its lock can be held.

    Without a name, the options must say enough to find one. Raises InvalidSpec for a spec that
    makes no sense.
    """
    if request.name is None:
        request = _named_by_options(context, request)
    _read_spec(context, request)
    return request


def _named_by_options(context: Context, request: BuildRequest) -> BuildRequest:
    """The name holds the Python version, which may be this machine's where no channel answers."""
    draft = specs.combine({}, request.options, name="")
    ensure_release(context.folders, context.mirrors, draft)
    resolution = resolve(draft)
    name = resolution.spec.name
    folder = context.folders.envs / name
    if (folder / render.SPEC).exists() or (folder / locks.FILE).exists():
        # Its spec.yml may say more than the options, and its lock says where Python comes from.
        return replace(request, name=name)
    resolved = resolve_with_python(context, draft, None, resolution)
    name = resolved.resolution.spec.name
    return replace(request, name=name, resolved=resolved)


def make_plan(context: Context, request: BuildRequest) -> Plan:
    """Work a request out. Changes nothing.

    May ask whether a channel answers, if nothing says where Python comes from. To act on the plan,
    the caller must hold the environment's lock.
    """
    if request.name is None:
        request = _named_by_options(context, request)
    spec = _read_spec(context, request)
    folder = context.folders.envs / spec.name
    lock = None
    try:
        if (folder / locks.FILE).exists():
            lock = locks.read(folder / locks.FILE)
    except IntegrityError as error:
        if not request.relock:  # only the command that replaces it goes on
            raise
        context.progress.warn(f"{error.message} It will be replaced.")
    is_new = not (folder / render.SPEC).exists() and lock is None
    resolved = request.resolved if is_new else None
    if resolved is None:
        resolved = resolve_with_python(context, spec, None if request.relock else lock)
    resolution = resolved.resolution
    prefix_path = prefix_registry.prefix_path(context.folders, spec.name, request.prefix)
    pitfalls.warn_of(context, resolution, folder, prefix_path)
    context.templates.require_ours(render.ENVIRONMENT, render.VIRTUAL_PACKAGES)
    texts = render.render_inputs(resolution)
    inputs = locks.read_inputs(
        texts[render.ENVIRONMENT],
        texts[render.VIRTUAL_PACKAGES],
        folder,
        as_of=spec.as_of,
        sources=spec.package_sources,
    )
    builds = [f"{name} {json.dumps(row, sort_keys=True)}" for name, row in spec.build.items()]
    inputs = replace(inputs, builds=tuple(sorted(builds)))
    is_current = (
        lock is not None
        and lock.python_from == resolved.python_from
        and lock.builds == inputs.builds
        and lock.inputs_sha256 == inputs.sha256
    )
    return Plan(
        request=request,
        folder=folder,
        resolution=resolution,
        spec_content=specs.content(resolution.spec),
        texts=texts,
        inputs=inputs,
        lock=lock,
        lock_is_current=is_current,
        python_from=resolved.python_from,
        prefix_path=prefix_path,
        templates=context.templates,
        smoke_defaults=settings.smoke_settings(),
    )


def _read_spec(context: Context, request: BuildRequest) -> Spec:
    """Options over the environment's own spec.yml, checked."""
    name = specs.check_name(request.name or "")
    path = context.folders.envs / name / render.SPEC
    require_spec(path, request.options)
    spec = combine(
        path, request.options, name=name, text=request.spec_text, mirrors=context.mirrors
    )
    ensure_release(context.folders, context.mirrors, spec)
    return check_requirements(spec)


def require_lock(plan: Plan) -> Lock:
    """The lock of a plan, current or not. Raises InvalidSpec if there is none."""
    if plan.lock is None:
        raise InvalidSpec(
            f"{plan.name} has no lock.",
            advice=f"Run `provision lock {plan.name}` or `provision build {plan.name}` first.",
        )
    return plan.lock
