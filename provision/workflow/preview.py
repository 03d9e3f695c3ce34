"""What a build would do."""

from __future__ import annotations

from typing import Any

from provision import image as images
from provision.core.container import brief_reference
from provision.core.types import LockedPackage
from provision.workflow.context import Context
from provision.workflow.ensure import check_buildable, previewed_plan
from provision.workflow.image.image import image_step
from provision.workflow.lock import solve_preview
from provision.workflow.plan import NO_ENGINE, BuildRequest, Plan, PlanStep
from provision_runtime.report.text import format_bytes


def preview(context: Context, request: BuildRequest) -> list[PlanStep]:
    """What `build` would do, stage by stage.

    Solves, and asks the engine what it has. Raises what `build` would raise before its first
    change, and what solving raises.
    """
    client = wanted_engine(request)
    with previewed_plan(context, request) as plan:
        check_buildable(context, plan)
        solved: tuple[LockedPackage, ...] = ()
        if plan.reusable_lock is None:
            solved = solve_preview(context, plan)
        image = image_step(context, plan, client)
        if image.action == "make":
            image = _with_base(plan, image, client)
        return plan.steps(image, solved)


def wanted_engine(request: BuildRequest) -> Any | None:
    """The Docker engine, if the request wants an image and one answers. Raises ToolMissing if it
    demands one and none does."""
    if request.image == "demand":
        return images.require_engine()
    if request.image == "auto":
        return images.connect_engine()[0]
    return None


def _with_base(plan: Plan, image: PlanStep, client: Any | None) -> PlanStep:
    """The step that makes an image, with what the engine has of its base."""
    reference = plan.resolution.spec.base
    if images.is_on_disk(reference):
        return image
    if client is None:
        return PlanStep(stage="image", action="skip", detail=NO_ENGINE)
    base = images.present_engine_base(client, reference)
    origin = "which the engine has to pull"
    if base is not None:
        origin = f"which the engine has ({format_bytes(base.size)})"
    base_name = brief_reference(images.chosen_base(reference))
    detail = f"make and load an image based on {base_name}, {origin}"
    return PlanStep(stage="image", action="make", detail=detail)
