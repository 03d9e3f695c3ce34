"""Updates some packages of a lock, and of the others only what must move with them."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Collection, Mapping, Sequence

from packaging.utils import canonicalize_name

from provision.adapters import conda
from provision.core.errors import InvalidSpec
from provision.core.types import Lock, LockedPackage, Platform, Resolution
from provision.lockfile.input_files import LockInputs
from provision.lockfile.joint_solve import (
    JointSolve,
    LocalPythonChannel,
    Packages,
    joint_solve,
    versions,
)

MAX_SUGGESTIONS = 3


def update(
    inputs: LockInputs,
    resolution: Resolution,
    names: Sequence[str],
    locks: Mapping[Platform, Lock],
    *,
    local_python: LocalPythonChannel | None = None,
    solver: conda.Solver | None = None,
) -> Packages:
    """The packages of a lock, guarded, with the named ones at the versions that a new lock would
    have.

    Another package moves only if it cannot stay. Raises InvalidSpec for a name that is in no
    platform's lock.
    """
    solver = solver or conda.Solver()
    _check_names(names, [package for lock in locks.values() for package in lock.packages])
    moving = {canonicalize_name(name) for name in names}
    packages: Packages = ()
    for platform in inputs.machines:
        joint = joint_solve(inputs, resolution, platform, local_python, solver)
        packages += joint.guarded(_update(joint, locks[platform], moving), resolution)
    return packages


def _check_names(names: Sequence[str], packages: Sequence[LockedPackage]) -> None:
    locked_names = sorted({package.name for package in packages})
    canonical = {canonicalize_name(name) for name in locked_names}
    unknown = [name for name in names if canonicalize_name(name) not in canonical]
    if not unknown:
        return
    suggestions: list[str] = []
    for name in unknown:
        suggestions += difflib.get_close_matches(name.lower(), locked_names, MAX_SUGGESTIONS, 0.6)
    advice = "`provision lock NAME --dry-run` lists its packages."
    if suggestions:
        advice = f"Did you mean: {', '.join(dict.fromkeys(suggestions))}?"
    raise InvalidSpec(
        f"The lock has no {', '.join(f'`{name}`' for name in unknown)}.", advice=advice
    )


def _update(joint: JointSolve, lock: Lock, moving: Collection[str]) -> Packages:
    staying = [
        package for package in lock.packages if canonicalize_name(package.name) not in moving
    ]
    staying_conda = [package for package in staying if package.manager == "conda"]
    staying_wheels = [package for package in staying if package.manager == "pip"]
    request = dataclasses.replace(joint.conda, prefer=tuple(staying_conda))
    targets = [
        package for package in joint.solve_conda() if canonicalize_name(package.name) in moving
    ]
    if targets:
        bounds = (*joint.bounds(), *(_exact_bound(package) for package in targets))
        request = _keep_all_possible(joint.solver, dataclasses.replace(request, bounds=bounds))
    wheel_request = joint.wheels
    if wheel_request is not None:
        wheel_request = dataclasses.replace(wheel_request, prefer=versions(staying_wheels))
    return dataclasses.replace(joint, conda=request, wheels=wheel_request).solve()


def _exact_bound(package: LockedPackage) -> str:
    return f"{package.name} =={package.version} {package.build}"


def _keep_all_possible(solver: conda.Solver, request: conda.SolveRequest) -> conda.SolveRequest:
    """The same request with bounds that keep every locked package that can stay.

    A solver that prefers what is locked may still move a package needlessly, so each one that moved
    is tried again in its old place.
    """
    answer = {package.name: package for package in solver.solve(request)}
    for package in request.prefer:
        new = answer.get(package.name)
        if new is None or (new.version, new.build) == (package.version, package.build):
            continue
        bounded = dataclasses.replace(request, bounds=(*request.bounds, _exact_bound(package)))
        if solver.is_solvable(bounded):
            request = bounded
            answer = {package.name: package for package in solver.solve(request)}
    return request
