"""Moving some packages of a lock, and of the others only what must move along."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence

from packaging.utils import canonicalize_name

from provision.adapters import conda
from provision.core.errors import InvalidSpec
from provision.core.types import Lock, LockedPackage, Platform, Resolution
from provision.lockfile.input_files import LockInputs
from provision.lockfile.joint_solve import (
    JointSolve,
    LocalPythonChannel,
    Packages,
    guarded,
    problem,
    versions,
)

CLOSE = 3


def update(
    wanted: LockInputs,
    resolution: Resolution,
    names: Sequence[str],
    locked: Mapping[Platform, Lock],
    *,
    local_python: LocalPythonChannel | None = None,
    solver: conda.Solver | None = None,
) -> Packages:
    """The packages of a lock with the named ones at the versions that a new lock would hold, guarded. Another package moves only if
    it cannot stay beside them. Raises InvalidSpec for a name that no platform's lock holds."""
    solver = solver or conda.Solver()
    _check_names(names, [package for lock in locked.values() for package in lock.packages])
    moving: set[str] = {canonicalize_name(name) for name in names}
    found: Packages = ()
    for platform in wanted.machines:
        both = problem(wanted, resolution, platform, local_python, solver)
        found += guarded(_update(both, locked[platform], moving), both, resolution)
    return found


def _check_names(names: Sequence[str], packages: Sequence[LockedPackage]) -> None:
    known = sorted({package.name for package in packages})
    there = {canonicalize_name(name) for name in known}
    if unknown := [name for name in names if canonicalize_name(name) not in there]:
        near = list(
            dict.fromkeys(
                match
                for name in unknown
                for match in difflib.get_close_matches(name.lower(), known, CLOSE, 0.6)
            )
        )
        raise InvalidSpec(
            f"The lock holds no {', '.join(f'`{name}`' for name in unknown)}.",
            advice=f"Near it: {', '.join(near)}."
            if near
            else "`provision lock NAME --dry-run` lists what it holds.",
        )


def _update(both: JointSolve, lock: Lock, moving: set[str]) -> Packages:
    staying = [
        package for package in lock.packages if canonicalize_name(package.name) not in moving
    ]
    conda_part = dataclasses.replace(
        both.conda, prefer=tuple(package for package in staying if package.manager == "conda")
    )
    if targets := [package for package in both.base() if canonicalize_name(package.name) in moving]:
        fixed = tuple(_exactly(package) for package in targets)
        conda_part = _fewest_moves(
            both.solver, dataclasses.replace(conda_part, bounds=(*both.bounds(), *fixed))
        )
    wheels_part = both.wheels
    if wheels_part is not None:
        prefer = versions([package for package in staying if package.manager == "pip"])
        wheels_part = dataclasses.replace(wheels_part, prefer=prefer)
    return dataclasses.replace(both, conda=conda_part, wheels=wheels_part).solve()


def _exactly(package: LockedPackage) -> str:
    return f"{package.name} =={package.version} {package.build}"


def _fewest_moves(solver: conda.Solver, request: conda.SolveRequest) -> conda.SolveRequest:
    """The same request with bounds that keep all that can stay. A solver that prefers what is locked may still move what it need not:
    each that it moves is tried again where it was."""
    answer = {package.name: package for package in solver.solve(request)}
    for package in request.prefer:
        moved = answer.get(package.name)
        if moved is None or (moved.version, moved.build) == (package.version, package.build):
            continue
        bounded = dataclasses.replace(request, bounds=(*request.bounds, _exactly(package)))
        if solver.is_solvable(bounded):
            request = bounded
            answer = {found.name: found for found in solver.solve(request)}
    return request
