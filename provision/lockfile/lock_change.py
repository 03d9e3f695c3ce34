"""An existing lock -> its packages after a change, for each platform, guarded.

`update` moves some packages to the versions of a new lock, `change` follows changed requirements.
What can stay at its version stays.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from provision.adapters import conda
from provision.adapters import uv as wheels
from provision.adapters.uv import ResolveRequest
from provision.core.errors import InvalidSpec, Unreachable, Unsolvable
from provision.core.requirement_urls import GIT
from provision.core.similar_names import did_you_mean
from provision.core.types import Lock, LockedPackage, Resolution
from provision.lockfile.input_files import LockInputs
from provision.lockfile.joint_solve import (
    JointSolve,
    LocalPythonChannel,
    Packages,
    joint_solve,
    provided,
    wheel_bounds,
)


def update(
    inputs: LockInputs,
    resolution: Resolution,
    names: Sequence[str],
    locks: Sequence[Lock],
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
    locked_packages = [package for lock in locks for package in lock.packages]
    _check_names(names, locked_packages, inputs.folder.name)
    moving = {canonicalize_name(name) for name in names}
    packages: Packages = ()
    for lock in locks:
        joint = joint_solve(inputs, resolution, lock.platform, local_python, solver)
        packages += joint.guarded(_update(joint, lock, moving), resolution)
    return packages


def _check_names(names: Sequence[str], packages: Sequence[LockedPackage], environment: str) -> None:
    locked = {canonicalize_name(package.name) for package in packages}
    for name in names:
        if canonicalize_name(name) not in locked:
            raise InvalidSpec(
                f"The lock has no `{name}`.",
                advice=f"{did_you_mean(canonicalize_name(name), locked)}`provision env tree "
                f"{environment}` lists its packages, `provision add {environment} {name}` adds it.",
            )


def change(
    inputs: LockInputs,
    resolution: Resolution,
    locks: Sequence[Lock],
    *,
    before: LockInputs,
    changed: Collection[str] = (),
    local_python: LocalPythonChannel | None = None,
    solver: conda.Solver | None = None,
) -> Packages:
    """The packages of requirements that changed since the lock was made, guarded.

    What the lock has stays at its version wherever it can; what nothing needs any more goes.
    before: what the lock was made of. changed: the packages whose requirements changed; git
    repositories of others stay at the commit.
    """
    solver = solver or conda.Solver()
    packages: Packages = ()
    for lock in locks:
        joint = joint_solve(inputs, resolution, lock.platform, local_python, solver)
        new = None
        if _conda_requests(inputs, lock) == _conda_requests(before, lock):
            new = _change_of_wheels(joint, lock, changed)
        if new is None:
            new = _update(joint, lock, (), changed)
        packages += joint.guarded(new, resolution)
    return packages


def _conda_requests(inputs: LockInputs, lock: Lock) -> tuple[object, ...]:
    """What decides about conda's packages of a lock."""
    names = {package.name for package in lock.by("conda")}
    bounds = [bound for bound in wheel_bounds(inputs.pip) if conda.spec_name(bound) in names]
    return inputs.conda, inputs.channels, inputs.machines[lock.platform], inputs.as_of, bounds


def _change_of_wheels(joint: JointSolve, lock: Lock, changed: Collection[str]) -> Packages | None:
    """The packages if only wheels change, which no channel need be read for. None if that is not
    certain to be the best: a wheel that was asked for may be newer with other conda packages."""
    staying = lock.by("conda")
    if joint.wheels is None:
        return staying
    request = _with_locked(joint.wheels, lock.by("pip"), changed)
    request = replace(request, provided=provided(staying))
    try:
        packages = wheels.resolve(request)
    except Unsolvable:
        return None
    is_best = not request.sources and all(_is_newest(name, packages, request) for name in changed)
    return (*staying, *packages) if is_best else None


def _update(
    joint: JointSolve, lock: Lock, moving: Collection[str], changed: Collection[str] = ()
) -> Packages:
    """moving: the packages that get the versions of a new lock. changed: those that are requested
    in other words now."""
    staying = [
        package for package in lock.packages if canonicalize_name(package.name) not in moving
    ]
    staying_conda = tuple(package for package in staying if package.manager == "conda")
    staying_wheels = [package for package in staying if package.manager == "pip"]
    request = replace(joint.conda, prefer=staying_conda)

    solved = joint.solve_conda() if moving else ()
    target_bounds = [
        _exact_bound(package) for package in solved if canonicalize_name(package.name) in moving
    ]
    if target_bounds or not moving:
        bounds = (*joint.bounds(), *target_bounds)
        try:
            request = _keep_all_possible(joint.solver, replace(request, bounds=bounds))
        except Unsolvable:
            joint.solve_conda(*target_bounds)  # raises the same, explained
            raise
    wheel_request = joint.wheels
    if wheel_request is not None:
        wheel_request = _with_locked(wheel_request, staying_wheels, changed)
        if moving:
            wheel_request = replace(wheel_request, new_requirements=None)
    joint = replace(joint, conda=request, wheels=wheel_request)
    packages = joint.solve()
    names = {*moving, *changed}
    if wheel_request and any(_is_newest(name, packages, wheel_request) is False for name in names):
        return joint.with_newest(names, staying_conda).solve()
    return packages


def _with_locked(
    request: ResolveRequest, staying: Sequence[LockedPackage], changed: Collection[str]
) -> ResolveRequest:
    """The request with these wheels at their versions and commits wherever that is possible, and
    the requirements of changed packages as new."""
    requirements = _with_locked_commits(request.requirements, staying, changed)
    new = [text for text in requirements if canonicalize_name(conda.spec_name(text)) in changed]
    return replace(
        request,
        requirements=requirements,
        prefer={package.name: package.version for package in staying},
        new_requirements=tuple(new),
    )


def _is_newest(name: str, packages: Packages, request: ResolveRequest) -> bool | None:
    """Whether no index has a newer wheel of a package that fits the environment and its own
    requirements; None if that is not known, as of what comes from no index."""
    limits = SpecifierSet()
    for requirement in map(Requirement, request.requirements):
        if canonicalize_name(requirement.name) == name:
            limits &= requirement.specifier
    try:
        releases = wheels.index_releases(name, request)
    except Unreachable:  # uv may log in where we cannot
        return None
    for package in packages:
        if package.manager == "conda" or canonicalize_name(package.name) != name:
            continue
        current = Version(package.version)
        if any(release.version == current for release in releases):
            return wheels.newest_release(releases, limits, current, request.glibc) == current
    return None


def _with_locked_commits(
    requirements: Sequence[str], packages: Sequence[LockedPackage], changed: Collection[str]
) -> tuple[str, ...]:
    """The requirements, with git repositories at the commits that are locked: a branch moves."""
    locked_urls = {
        name: package.url
        for package in packages
        if package.url.startswith(GIT) and (name := canonicalize_name(package.name)) not in changed
    }
    pinned = []
    for text in requirements:
        requirement = Requirement(text)
        url = locked_urls.get(canonicalize_name(requirement.name))
        if requirement.url is not None and url is not None:
            requirement.url = url
            text = str(requirement)
        pinned.append(text)
    return tuple(pinned)


def _exact_bound(package: LockedPackage) -> str:
    return f"{package.name} =={package.version} {package.build}"


def _keep_all_possible(solver: conda.Solver, request: conda.SolveRequest) -> conda.SolveRequest:
    """The same request with bounds that keep every locked package that can stay.

    A solver that prefers the locked versions may still move a package needlessly, so each one that
    moved is tried again at its locked version.
    """
    answer = {package.name: package for package in solver.solve(request)}
    for package in request.prefer:
        new = answer.get(package.name)
        if new is None or (new.version, new.build) == (package.version, package.build):
            continue
        bounded = replace(request, bounds=(*request.bounds, _exact_bound(package)))
        if solver.is_solvable(bounded):
            request = bounded
            answer = {package.name: package for package in solver.solve(request)}
    return request
