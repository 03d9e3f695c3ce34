"""From requirements to packages: conda's by py-rattler, then wheels by uv around what conda provides, guarded; once per platform."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from provision import conda, wheels
from provision.compat import version_key
from provision.errors import InvalidSpec, Unsolvable
from provision.model import LockedPackage, Platform, Resolution
from provision.pipeline.lock import explaining
from provision.pipeline.lock.asked import Inputs
from provision.pipeline.lock.culprits import Why
from provision.pipeline.lock.guarding import guard

FromConda = Callable[[Sequence[str]], tuple[LockedPackage, ...]]
FromIndex = Callable[..., tuple[LockedPackage, ...]]


@dataclass(frozen=True, kw_only=True)
class StandIn:
    """A local channel that takes the place of the request's channels, and the glibc that its binaries need."""

    channel: str
    glibc: str


def solve(
    wanted: Inputs, resolution: Resolution, *, stand_in: StandIn | None = None, solver: conda.Solver | None = None
) -> tuple[LockedPackage, ...]:
    """Every package of the environment on every platform, guarded.

    stand_in: a local channel with this machine's Python, used instead of the request's channels; such a lock is not portable.
    solver: what has read the channels already, where there are many locks to be made.
    """
    if stand_in and (others := [platform for platform in wanted.machines if platform != conda.here()]):
        raise InvalidSpec(
            f"Python would come from this machine ({conda.here()}), which cannot lend it to {', '.join(others)}.",
            advice="Name a channel that answers with --channel, or ask for this machine's platform alone.",
        )
    found: tuple[LockedPackage, ...] = ()
    for platform in wanted.machines:
        packages = _solve(wanted, resolution, platform, stand_in, solver or conda.Solver())
        guard(packages, resolution)
        found += packages
    return found


def _solve(
    wanted: Inputs, resolution: Resolution, platform: Platform, stand_in: StandIn | None, solver: conda.Solver
) -> tuple[LockedPackage, ...]:
    virtual = dict(wanted.machines[platform])
    if stand_in:  # its Python runs on this machine's glibc or newer, whatever the request assumes of others
        virtual["__glibc"] = max(virtual["__glibc"], stand_in.glibc, key=version_key)
    request = conda.Request(
        specs=wanted.conda,
        channels=(stand_in.channel,) if stand_in else wanted.channels,
        virtual_packages=tuple(virtual.items()),
        platform=platform,
        as_of=None if stand_in else wanted.as_of,  # what is packaged here and now has no other date
    )
    from_index = functools.partial(_from_index, wanted.pip, resolution, glibc=virtual["__glibc"], platform=platform, as_of=wanted.as_of)

    why = Why.of(resolution.pins, _bounded(wanted.pip))

    def from_conda(bounds: Sequence[str]) -> tuple[LockedPackage, ...]:
        bounded = dataclasses.replace(request, bounds=tuple(bounds))
        try:
            return solver.solve(bounded)
        except Unsolvable as error:
            raise explaining.explain(error, bounded, solver, why) from error

    def fits(bound: str) -> bool:
        return solver.solvable(dataclasses.replace(request, bounds=(bound,)))

    return _solve_both(wanted.pip, from_conda, fits, from_index)


def _from_index(requirements: Sequence[str], resolution: Resolution, **more: Any) -> tuple[LockedPackage, ...]:
    """The wheels, and if there are none and the torch asked for is on an index that must be configured: that it must."""
    build_path = resolution.local_version.partition("+")[2] if resolution.needs_local_build else None
    try:
        return wheels.resolve(requirements, python=resolution.python, build_path=build_path, **more)
    except Unsolvable as error:
        if build_path:
            error.advice = (
                f"{resolution.local_version} is on PyTorch's own wheel index: name that index (its address up to, without, the folder "
                f"{build_path}) in the environment variable {wheels.TORCH_INDEX}. {error.advice}"
            ).strip()
        raise


def _solve_both(
    requirements: Sequence[str], from_conda: FromConda, fits: Callable[[str], bool], from_index: FromIndex
) -> tuple[LockedPackage, ...]:
    """fits: whether conda has an answer within one bound alone; versions of one name need not be counted alike (tzdata 2026.2, 2026b).

    Wheels for what conda does not provide. A Python package that both have is conda's and binds the wheels; where the wheels
    cannot live with conda's choice (its pip brings the newest setuptools, which some torch releases refuse), conda takes theirs."""
    bounds = _conda_bounds(requirements)
    base = from_conda(bounds)
    if not requirements:
        return base
    try:
        return base + from_index(provided=_versions(base))
    except Unsolvable:
        free = _versions(from_index())
        shared = {name: free[wheels.normal(name)] for name in _versions(base) if wheels.normal(name) in free}
        if not shared:
            raise
        lower = [bound for name, version in sorted(shared.items()) if fits(bound := f"{name} <={version}")]
        base = from_conda([*bounds, *lower])
        return base + from_index(provided=_versions(base))


def _versions(packages: Sequence[LockedPackage]) -> dict[str, str]:
    return {package.name: package.version for package in packages}


def _conda_bounds(requirements: Sequence[str]) -> tuple[str, ...]:
    """Versions that the wheels' requirements allow, as bounds on conda: its pip brings setuptools along, which they may limit."""
    return tuple(_bounded(requirements))


def _bounded(requirements: Sequence[str]) -> dict[str, str]:
    """Bound on conda -> why it is there."""
    from packaging.requirements import Requirement

    parsed = [Requirement(text) for text in requirements]
    bounds = {f"{wanted.name} {wanted.specifier}": str(wanted) for wanted in parsed if wanted.specifier and not wanted.marker}
    return {bound: f"what the wheels ask for: {text}" for bound, text in bounds.items() if not conda.check_specs([bound])}
