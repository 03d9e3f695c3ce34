"""`provision lock`: making and previewing the lock of an environment."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from provision import lockfile as locks
from provision.core.dataclass import frozen
from provision.core.errors import InvalidSpec
from provision.core.tempdirs import temporary_directory
from provision.core.types import Lock, LockedPackage
from provision.resolver import spec as specs
from provision.workflow import source_builds
from provision.workflow.context import Context, missing_file
from provision.workflow.ensure import (
    diff_with,
    ensure_lock,
    locked_plan,
    previewed_plan,
    require_current_lock,
    solve_giving_way,
)
from provision.workflow.plan import BuildRequest, Plan


@frozen
class LockPreview:
    """difference: from the present lock; None if there is none, or if it stays as it is."""

    packages: tuple[LockedPackage, ...]
    difference: locks.LockDiff | None = None


def lock(context: Context, request: BuildRequest) -> tuple[Lock, bool]:
    """The lock of a request, and whether it was solved now."""
    with locked_plan(context, request) as plan:
        _, lock, is_new, _ = ensure_lock(context, plan)
        return lock, is_new


def package_counts(lock: Lock) -> dict[str, int]:
    """The number of packages for each platform that a lock file holds."""
    platforms = locks.read_platforms(lock.path) if len(lock.platforms) > 1 else (lock,)
    return {platform.platform: len(platform.packages) for platform in platforms}


def preview(context: Context, request: BuildRequest) -> LockPreview:
    """The packages that `lock` would write. Changes nothing."""
    with previewed_plan(context, request) as plan:
        require_current_lock(plan)
        current = plan.reusable_lock
        if current is not None:
            platforms = locks.read_platforms(current.path)
            packages = tuple(package for platform in platforms for package in platform.packages)
            return LockPreview(packages=packages)
        solved = solve_preview(context, plan)
        with source_builds.built(context, plan, solved, dry_run=True) as packages:
            if plan.lock is None:
                return LockPreview(packages=packages)
            path = plan.lock.path
            text, _ = locks.compose(path, plan.inputs, packages, python_from=plan.python_from)
            return LockPreview(packages=packages, difference=diff_with(path, text))


def solve_preview(context: Context, plan: Plan) -> tuple[LockedPackage, ...]:
    """The packages of a plan that has no lock yet. Changes nothing.

    A local channel that solving needs is made in a temporary folder.
    """
    with temporary_directory("preview") as folder:
        folders = replace(context.folders, data=folder)
        temporary = replace(context, folders=folders)
        channels = context.folders.channels
        if not channels.exists():
            channels = folders.channels
        return solve_giving_way(temporary, plan, channels)[1]


def lock_file(context: Context, target: str) -> Path:
    """The lock that a target names: a file of that name if there is one, else an environment's."""
    path = Path(target)
    if path.is_file():
        return path
    if "/" in target or target.endswith((".yml", ".yaml")):
        raise InvalidSpec(
            f"There is no file {path}.", advice="Name a conda-lock.yml, or an environment."
        )
    path = context.folders.envs / specs.check_name(target) / locks.FILE
    if not path.is_file():
        raise missing_file(path, advice=f"`provision lock {target}` makes it.")
    return path
