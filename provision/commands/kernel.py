"""`provision kernel add`: an environment as a kernel of this user's Jupyter."""

from __future__ import annotations

from typing import Any

from provision.commands.context import Context
from provision.commands.ensure import ensure_kernel, ensure_runtime
from provision.commands.env import require_prefix
from provision.commands.plan import BuildRequest, Plan, make_plan
from provision.core.errors import InvalidSpec
from provision.core.types import Kernel, Prefix
from provision.environment import kernel as kernels


def add(context: Context, request: BuildRequest) -> tuple[Kernel, bool]:
    """Register a prefix with this user's Jupyter; whether anything changed."""
    plan = make_plan(context, request)
    prefix = _startable_prefix(context, plan)
    ensure_runtime(context, prefix)
    return ensure_kernel(prefix, kernels.display_name(plan.resolution))


def preview(context: Context, request: BuildRequest) -> dict[str, Any]:
    """The kernel.json that `add` would install."""
    plan = make_plan(context, request)
    prefix = _startable_prefix(context, plan)
    return kernels.kernel_json(prefix, kernels.display_name(plan.resolution))


def _startable_prefix(context: Context, plan: Plan) -> Prefix:
    """The prefix of a plan. Raises InvalidSpec if Jupyter could not start it."""
    prefix = require_prefix(context, plan.name, plan.request.prefix)
    if not kernels.has_launcher(prefix):
        raise InvalidSpec(
            f"{prefix.path} has no {kernels.LAUNCHER}, which Jupyter needs to start it.",
            advice=f"Build it with Jupyter: `provision build {plan.name} --jupyter --relock`.",
        )
    return prefix
