"""`provision env tree`: what is in an environment, and why."""

from __future__ import annotations

import difflib

from packaging.utils import canonicalize_name

from provision import lockfile as locks
from provision.core.errors import InvalidSpec
from provision.core.paths import LOCK, SPEC
from provision.lockfile import tree
from provision.resolver import spec as specs
from provision.workflow.context import Context, missing_file
from provision.workflow.plan import BuildRequest, make_plan


def package_tree(context: Context, name: str, package: str | None) -> list[tree.TreeNode]:
    """`provision env tree`: what each requested package needs; with `package`, what needs it.

    Raises InvalidSpec if there is no lock, or no such package in it.
    """
    path = context.folders.envs / specs.check_name(name) / SPEC
    if not path.exists():
        raise missing_file(path, advice="`provision env list` shows what there is.")
    plan = make_plan(context, BuildRequest(name=name))
    path = plan.folder / LOCK
    if plan.lock is None:
        raise missing_file(path, advice=f"`provision lock {name}` makes it.")
    packages = tree.packages_by_name(locks.read_file(path).for_platform(plan.lock.platform))
    if package is None:
        return tree.dependency_tree(packages, plan.pins)
    canonical = canonicalize_name(package)
    if canonical not in packages:
        similar = difflib.get_close_matches(canonical, packages)
        advice = f"Similar names: {', '.join(similar)}." if similar else ""
        raise InvalidSpec(f"{path} has no package `{package}`.", advice=advice)
    return [tree.dependents_tree(packages, plan.pins, canonical)]
