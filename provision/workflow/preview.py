"""What a build would do."""

from __future__ import annotations

from provision.adapters.docker import require_engine
from provision.workflow.context import Context
from provision.workflow.ensure import check_buildable, previewed_plan
from provision.workflow.lock import solve_preview
from provision.workflow.plan import BuildRequest, PlanStep


def preview(context: Context, request: BuildRequest) -> list[PlanStep]:
    """What `build` would do, stage by stage.

    Solves: raises what `build` would raise before its first change, and what solving raises.
    """
    if request.image == "demand":
        require_engine()
    with previewed_plan(context, request) as plan:
        check_buildable(context, plan)
        if plan.reusable_lock is None:
            solve_preview(context, plan)
        return plan.steps()
