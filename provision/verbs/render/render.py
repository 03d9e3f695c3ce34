"""`provision render`: the generated files of an environment."""

from __future__ import annotations

from provision.workflow.context import Context
from provision.workflow.ensure import ensure_dockerfile, ensure_inputs, locked_plan
from provision.workflow.plan import BuildRequest


def render(context: Context, request: BuildRequest) -> list[str]:
    """Write the generated files; returns the names of those that changed.

    The Dockerfile belongs to a lock: without a current one it is left as it is.
    """
    with locked_plan(context, request) as plan:
        written = ensure_inputs(plan)
        if plan.current_lock is not None:
            texts = plan.dockerfile_texts(plan.current_lock)
            written += ensure_dockerfile(context, plan, texts, force=request.force)
        return written
