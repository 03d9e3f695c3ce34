"""`provision matrix`: which builds exist, and why a request gets the build that it gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from provision.core.paths import SPEC
from provision.resolver import Explanation
from provision.resolver import explain as explain_spec
from provision.resolver import spec as specs
from provision.resolver.constraints import releases_of

if TYPE_CHECKING:
    from pathlib import Path

    from provision.workflow.context import Context


# Planning imports solver, lock files and images, which the table does not need.


def explain(
    make_context: Callable[[], Context], envs: Path, name: str | None, options: Mapping[str, Any]
) -> Explanation:
    """`provision matrix explain`: why an environment, or a request without a name, is what it is.

    Asks no channel, and an index only about a release that the facts do not have.
    """
    from provision.workflow.context import require_spec
    from provision.workflow.resolution import check_requirements, combine, machine_for

    if name is None:
        spec = specs.combine({}, options, name="")
    else:
        path = envs / specs.check_name(name) / SPEC
        require_spec(path, options)
        spec = combine(path, options, name=name)
    if not releases_of(spec.torch):
        from provision.workflow.index_facts import ensure_release

        context = make_context()
        ensure_release(context.folders, context.mirrors, spec)
    return explain_spec(check_requirements(spec), machine_for(spec))
