"""Jupyter kernels of installed environments."""

from __future__ import annotations

from provision.core.errors import InvalidSpec
from provision.core.types import Kernel, Prefix
from provision.environment import kernel as kernels
from provision.workflow.context import Context
from provision.workflow.ensure import ensure_kernel, ensure_runtime
from provision.workflow.plan import BuildRequest, Plan, make_plan
from provision.workflow.project import require_prefix


def add_kernel(context: Context, request: BuildRequest) -> tuple[Kernel, bool]:
    """Register a prefix with this user's Jupyter; whether anything changed."""
    plan = make_plan(context, request)
    prefix = _startable_prefix(context, plan)
    ensure_runtime(context, prefix)
    return ensure_kernel(prefix, plan.kernel_title)


def preview_kernel(context: Context, request: BuildRequest) -> kernels.KernelSpec:
    """The kernel.json that `add_kernel` would install."""
    plan = make_plan(context, request)
    return kernels.kernel_spec(_startable_prefix(context, plan), plan.kernel_title)


def _startable_prefix(context: Context, plan: Plan) -> Prefix:
    """The prefix of a plan. Raises InvalidSpec if Jupyter could not start it."""
    prefix = require_prefix(context.folders, plan.name, plan.request.prefix)
    if not kernels.has_launcher(prefix):
        raise InvalidSpec(
            f"{prefix.path} has no {kernels.LAUNCHER}, which Jupyter needs to start it.",
            advice=f"Build it with Jupyter: `provision build {plan.name} --jupyter --relock`.",
        )
    return prefix
