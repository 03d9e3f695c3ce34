"""`provision render`: the generated files of an environment, written or compared."""

from __future__ import annotations

import difflib
from pathlib import Path

from provision import lockfile as locks
from provision import render as renderer
from provision.core.types import EnvironmentOutcome
from provision.workflow.context import Context
from provision.workflow.ensure import check_unedited, ensure_dockerfile, ensure_inputs, locked_plan
from provision.workflow.plan import BuildRequest, make_plan


def render(context: Context, request: BuildRequest) -> list[str]:
    """Write the generated files; returns the names of those that changed.

    The Dockerfile belongs to a lock: without a current one it is left as it is.
    """
    with locked_plan(context, request) as plan:
        check_unedited(plan)
        written = ensure_inputs(plan)
        if plan.current_lock is not None:
            written += ensure_dockerfile(context, plan, plan.current_lock, force=request.force)
        return written


def check(context: Context, request: BuildRequest) -> EnvironmentOutcome:
    """`provision render --check`: whether files and lock are what spec.yml comes to."""
    plan = make_plan(context, request)
    texts = dict(plan.texts)
    if plan.current_lock is not None:
        texts |= plan.dockerfile_texts(plan.current_lock)
    differing = renderer.changed_files(plan.folder, texts)
    diff = "".join(unified_diff(plan.folder / name, texts[name]) for name in differing)
    if plan.lock is not None and not plan.lock_is_current:
        differing = [*differing, f"{locks.FILE} (stale)"]
    if not differing:
        return EnvironmentOutcome(name=plan.name, status="current", detail="as rendered")
    return EnvironmentOutcome(
        name=plan.name, status="differs", detail=", ".join(differing), exit_code=1, diff=diff
    )


def unified_diff(path: Path, text: str) -> str:
    """How a file differs from its text as rendered; empty if it does not."""
    before = renderer.read_text(path) if path.exists() else ""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True),
        text.splitlines(keepends=True),
        str(path),
        f"{path} (as rendered)",
    )
    return "".join(lines)
