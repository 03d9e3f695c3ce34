"""`provision env show` and `provision env tree`: what is in an environment, and why."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from provision import lockfile as locks
from provision.core.dataclass import frozen
from provision.core.errors import InvalidSpec
from provision.core.paths import LOCK, SPEC
from provision.core.types import Pin
from provision.environment import passport as passports
from provision.lockfile import tree
from provision.resolver import spec as specs
from provision.workflow.context import Context, missing_file
from provision.workflow.environments import Environment, describe_environment
from provision.workflow.plan import BuildRequest, Plan, make_plan


@frozen
class Requirement:
    """One requirement of the request: what is locked for it, and why it is there."""

    manager: str
    requirement: str
    locked: str | None
    reason: str
    source: str


@frozen
class EnvironmentDetails:
    """What `provision env show` says.

    folder: in the envs folder. packages: locked ones, by manager. lock_is_current: whether the lock
    is of the request as it is now; None without a lock. image: the reference of the last one built.
    kernel: its name in Jupyter's menu.
    """

    summary: Environment
    folder: Path
    request: Mapping[str, Any]
    build: Mapping[str, str]
    lock_is_current: bool | None
    packages: Mapping[str, int]
    requirements: tuple[Requirement, ...]
    image: str | None
    kernel: str | None


def show_environment(context: Context, name: str) -> EnvironmentDetails:
    """`provision env show`. Raises InvalidSpec if the envs folder does not describe it."""
    plan = _plan_of(context, name)
    lock = plan.lock
    resolution = plan.resolution
    build = {
        "torch": resolution.local_version,
        "cuda": resolution.cuda or "none (CPU)",
        "python": resolution.python,
        "nccl": resolution.nccl,
        "driver": f">= {resolution.driver_floor}" if resolution.driver_floor else None,
        "source": resolution.source,
    }
    packages: dict[str, int] = {}
    requirements = []
    for package in lock.packages if lock else ():
        packages[package.manager] = packages.get(package.manager, 0) + 1
    for pin in plan.pins:
        locked = passports.locked_version(pin, lock) if lock else None
        requirements.append(Requirement(**asdict(pin), locked=locked))
    summary, image, kernel = describe_environment(context, name)
    return EnvironmentDetails(
        summary=summary,
        folder=plan.folder,
        request=plan.spec_content,
        build={key: value for key, value in build.items() if value},
        lock_is_current=plan.lock_is_current if lock else None,
        packages=packages,
        requirements=tuple(requirements),
        image=image,
        kernel=kernel,
    )


def package_tree(context: Context, name: str, package: str | None) -> list[tree.TreeNode]:
    """`provision env tree`: what each requested package needs; with `package`, what needs it.

    Raises InvalidSpec if there is no lock, or no such package in it.
    """
    plan = _plan_of(context, name)
    path = plan.folder / LOCK
    if plan.lock is None:
        raise missing_file(path, advice=f"`provision lock {name}` makes it.")
    graph = tree.PackageGraph(locks.read_file(path).for_platform(plan.lock.platform))
    pins: tuple[Pin, ...] = plan.pins
    if package is None:
        return tree.dependency_tree(graph, pins)
    if package not in graph:
        similar = difflib.get_close_matches(canonicalize_name(package), graph.names())
        advice = f"Similar names: {', '.join(similar)}." if similar else ""
        raise InvalidSpec(f"{path} has no package `{package}`.", advice=advice)
    return [tree.dependents_tree(graph, pins, package)]


def _plan_of(context: Context, name: str) -> Plan:
    path = context.folders.envs / specs.check_name(name) / SPEC
    if not path.exists():
        raise missing_file(path, advice="`provision env list` shows what there is.")
    return make_plan(context, BuildRequest(name=name))
