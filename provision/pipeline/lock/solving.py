"""From requirements to packages: conda's by py-rattler, then wheels by uv around what conda provides, guarded."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from provision import conda, wheels
from provision.compat import version_key
from provision.errors import Unsolvable
from provision.model import LockedPackage, Resolution
from provision.pipeline.lock.asked import Inputs
from provision.pipeline.lock.guarding import guard


@dataclass(frozen=True, kw_only=True)
class StandIn:
    """A local channel that takes the place of the request's channels, and the glibc that its binaries need."""

    channel: str
    glibc: str


def solve(wanted: Inputs, resolution: Resolution, *, stand_in: StandIn | None, alias: str | None = None) -> tuple[LockedPackage, ...]:
    """Every package of the environment, guarded: conda's by py-rattler, then wheels by uv around what conda already provides.

    stand_in: a local channel with this machine's Python, used instead of the request's channels; such a lock is not portable.
    """
    virtual = dict(wanted.machine)
    if stand_in:  # its Python runs on this machine's glibc or newer, whatever the request assumes of others
        virtual["__glibc"] = max(virtual["__glibc"], stand_in.glibc, key=version_key)
    channels = (stand_in.channel,) if stand_in else wanted.channels

    def from_conda(bounds: Sequence[str]) -> tuple[LockedPackage, ...]:
        return conda.solve(wanted.conda, channels, tuple(virtual.items()), bounds=bounds, alias=alias)

    packages = _solve_both(wanted.pip, from_conda, resolution, virtual["__glibc"])
    guard(packages, resolution)
    return packages


def _solve_both(
    requirements: Sequence[str], from_conda: Callable[[Sequence[str]], tuple[LockedPackage, ...]], resolution: Resolution, glibc: str
) -> tuple[LockedPackage, ...]:
    """Wheels for what conda does not provide. A Python package that both have is conda's and binds the wheels; where the wheels
    cannot live with conda's choice (its pip brings the newest setuptools, which some torch releases refuse), conda takes theirs."""
    bounds = _conda_bounds(requirements)
    base = from_conda(bounds)
    if not requirements:
        return base
    build_path = resolution.local_version.partition("+")[2] if resolution.needs_local_build else None
    resolve = functools.partial(wheels.resolve, requirements, python=resolution.python, glibc=glibc, build_path=build_path)
    free = {package.name: package for package in _explained(resolve, resolution, build_path)}
    shared = sorted({package.name for package in base if package.name not in ("python", "pip")} & free.keys())
    if not shared:
        return base + tuple(free.values())
    try:
        return base + _around(resolve, base, shared)
    except Unsolvable:
        lower = [bound for name in shared if _can_be(from_conda, bound := f"{name} <={free[name].version}")]
        base = from_conda([*bounds, *lower])
        return base + _around(resolve, base, shared)


def _can_be(from_conda: Callable[[Sequence[str]], tuple[LockedPackage, ...]], bound: str) -> bool:
    """Whether conda has an answer within this bound alone; versions of one name need not be counted alike (tzdata 2026.2, 2026b)."""
    try:
        from_conda([bound])
    except Unsolvable:
        return False
    return True


def _around(
    resolve: Callable[..., tuple[LockedPackage, ...]], base: Sequence[LockedPackage], shared: Sequence[str]
) -> tuple[LockedPackage, ...]:
    versions = {package.name: package.version for package in base}
    found = resolve(constraints=[f"{name}=={versions[name]}" for name in shared], leave_out=shared)
    return tuple(package for package in found if package.name not in shared)


def _explained(
    resolve: Callable[..., tuple[LockedPackage, ...]], resolution: Resolution, build_path: str | None
) -> tuple[LockedPackage, ...]:
    try:
        return resolve()
    except Unsolvable as error:
        if build_path:
            error.advice = (
                f"{resolution.local_version} is on PyTorch's own wheel index: name that index (its address up to, without, the folder "
                f"{build_path}) in the environment variable {wheels.TORCH_INDEX}. {error.advice}"
            ).strip()
        raise


def _conda_bounds(requirements: Sequence[str]) -> tuple[str, ...]:
    """Versions that the wheels' requirements allow, as bounds on conda: its pip brings setuptools along, which they may limit."""
    from packaging.requirements import Requirement

    parsed = (Requirement(text) for text in requirements)
    bounded = [f"{wanted.name} {wanted.specifier}" for wanted in parsed if wanted.specifier and not wanted.marker]
    return tuple(bound for bound in bounded if not conda.check_specs([bound]))
