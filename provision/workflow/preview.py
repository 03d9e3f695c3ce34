"""What a build would do."""

from __future__ import annotations

from typing import Any

from provision import image as images
from provision.core.types import LockedPackage
from provision.workflow.context import Context
from provision.workflow.ensure import check_buildable, previewed_plan
from provision.workflow.image.image import image_step
from provision.workflow.lock import solve_preview
from provision.workflow.plan import NO_ENGINE, BuildRequest, PlanStep


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
        is_on_disk = images.is_on_disk(plan.resolution.spec.base)
        if image.action == "make" and client is None and not is_on_disk:
            image = PlanStep(stage="image", action="skip", detail=NO_ENGINE)
        return plan.steps(image, solved)


def wanted_engine(request: BuildRequest) -> Any | None:
    """The Docker engine, if the request wants an image and one answers. Raises ToolMissing if it
    demands one and none does."""
    if request.image == "demand":
        return images.require_engine()
    if request.image == "auto":
        return images.connect_engine()[0]
    return None
