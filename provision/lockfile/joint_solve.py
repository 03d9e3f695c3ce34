"""From requirements to packages: conda's by py-rattler, then wheels by uv around what conda provides, guarded; once per platform."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from packaging.utils import canonicalize_name

from provision.adapters import conda
from provision.adapters import uv as wheels
from provision.catalog import version_key
from provision.core.errors import InvalidSpec, Unsolvable
from provision.core.mirrors import Mirrors
from provision.core.types import LockedPackage, Platform, Resolution
from provision.lockfile.cuda_guard import cause_of, guard, problem_of, torch_name
from provision.lockfile.diagnose import conda as explaining_conda
from provision.lockfile.diagnose import uv
from provision.lockfile.diagnose.unsat_core import PinReasons
from provision.lockfile.external_solver import ExternalSolver
from provision.lockfile.input_files import LockInputs

Packages = tuple[LockedPackage, ...]


@dataclass(frozen=True, kw_only=True)
class LocalPythonChannel:
    """A local channel that takes the place of the request's channels, and the glibc that its binaries need."""

    channel: str
    glibc: str


def solve(
    wanted: LockInputs,
    resolution: Resolution,
    *,
    local_python: LocalPythonChannel | None = None,
    solver: conda.Solver | None = None,
    external: ExternalSolver | None = None,
) -> Packages:
    """Every package of the environment on every platform, guarded.

    local_python: a local channel with this machine's Python, used instead of the request's channels; such a lock is not portable.
    solver: what has read the channels already, where there are many locks to be made.
    external: the executable that shall solve conda's part instead.
    """
    solver = solver or conda.Solver()
    found: Packages = ()
    for platform in wanted.machines:
        both = dataclasses.replace(
            problem(wanted, resolution, platform, local_python, solver), external=external
        )
        found += guarded(both.solve(), both, resolution)
    return found


def problem(
    wanted: LockInputs,
    resolution: Resolution,
    platform: Platform,
    local_python: LocalPythonChannel | None,
    solver: conda.Solver,
) -> JointSolve:
    """What is to be solved for one platform."""
    if local_python and platform != conda.host_platform():
        raise InvalidSpec(
            f"Python would come from this machine ({conda.host_platform()}), which cannot lend it to {platform}.",
            advice="Name a channel that answers with --channel, or ask for this machine's platform alone.",
        )
    why = PinReasons.of(resolution.pins, _bounded(wanted.pip))
    return JointSolve(
        solver, *requests(wanted, resolution, platform, local_python, solver.mirrors), why
    )


def guarded(packages: Packages, both: JointSolve, resolution: Resolution) -> Packages:
    """The packages of one platform, or CheckFailed with the cause if torch is not the build that was asked for."""
    if problem_of(packages, resolution):
        guard(packages, resolution, both.cause(resolution))
    return packages


def requests(
    wanted: LockInputs,
    resolution: Resolution,
    platform: Platform,
    local_python: LocalPythonChannel | None,
    mirrors: Mirrors,
) -> tuple[conda.SolveRequest, wheels.ResolveRequest | None]:
    """What conda's solver and uv are asked for one platform; uv nothing, if nothing is asked of the package index."""
    virtual = dict(wanted.machines[platform])
    if (
        local_python
    ):  # its Python runs on this machine's glibc or newer, whatever the request assumes of others
        virtual["__glibc"] = max(virtual["__glibc"], local_python.glibc, key=version_key)
    from_conda = conda.SolveRequest(
        specs=wanted.conda,
        channels=(local_python.channel,) if local_python else wanted.channels,
        virtual_packages=tuple(virtual.items()),
        platform=platform,
        as_of=None
        if local_python
        else wanted.as_of,  # what is packaged here and now has no other date
    )
    from_index = wheels.ResolveRequest(
        requirements=wanted.pip,
        python=resolution.python,
        glibc=virtual["__glibc"],
        platform=platform,
        build_path=resolution.local_version.partition("+")[2]
        if resolution.needs_local_build
        else None,
        as_of=wanted.as_of,
        mirrors=mirrors,
    )
    return from_conda, from_index if wanted.pip else None


@dataclass(frozen=True)
class JointSolve:
    """Two solvers that must agree: wheels are for what conda does not provide. A Python package that both have is conda's and binds
    the wheels; where the wheels cannot live with conda's choice (its pip brings the newest setuptools, which some torch releases
    refuse), conda takes theirs."""

    solver: conda.Solver  # ours: solves, unless `outside` does, and explains
    conda: conda.SolveRequest
    wheels: wheels.ResolveRequest | None
    why: PinReasons
    external: ExternalSolver | None = None

    def solve(self) -> Packages:
        base = self.base()
        if self.wheels is None:
            return base
        try:
            return base + wheels.resolve(dataclasses.replace(self.wheels, provided=provided(base)))
        except Unsolvable:
            free = versions(self._from_index({}))
            lower = [
                f"{name} <={free[canonicalize_name(name)]}"
                for name in versions(base)
                if canonicalize_name(name) in free
            ]
            base = self.base(*filter(self._fits, lower)) if lower else base
            return base + self._from_index(provided(base))

    def bounds(self) -> tuple[str, ...]:
        """What limits conda beside its own requirements."""
        return tuple(
            dict.fromkeys(
                (*self.conda.bounds, *_bounded(self.wheels.requirements if self.wheels else ()))
            )
        )

    def base(self, *more: str) -> Packages:
        """conda's part, within bounds and more bounds."""
        request = dataclasses.replace(self.conda, bounds=(*self.bounds(), *more))
        if self.external:
            return self.external.solve(request)
        try:
            return self.solver.solve(request)
        except Unsolvable as error:
            raise explaining_conda.explain(error, request, self.solver, self.why) from error

    def cause(self, resolution: Resolution) -> str:
        """PinReasons torch could come out as another build."""
        if resolution.source != "wheels":
            return cause_of(self.conda, resolution, self.solver, self.why)
        asked = [
            text
            for text in (self.wheels.requirements if self.wheels else ())
            if conda.spec_name(text) == torch_name(resolution)
        ]
        return f"What was asked for is {self.why.listed(asked)}." if asked else ""

    def _fits(self, bound: str) -> bool:
        """Whether conda has an answer within one bound alone: versions of one name need not be counted alike (tzdata 2026.2, 2026b)."""
        return self.solver.is_solvable(dataclasses.replace(self.conda, bounds=(bound,)))

    def _from_index(self, provided: Mapping[str, str]) -> Packages:
        assert self.wheels is not None
        request = dataclasses.replace(self.wheels, provided=provided)
        try:
            return wheels.resolve(request)
        except Unsolvable as error:
            raise uv.explain(error, request, self.why) from error


# conda packages that the package index knows under another name, and wheels ask for by that. Source: the dist-info they install.
AS_WHEELS = {"pytorch": "torch", "torchtriton": "triton"}


def provided(packages: Sequence[LockedPackage]) -> dict[str, str]:
    """Name -> version of what need not be installed as a wheel. Without conda's pytorch among it, a wheel that needs torch would
    bring a second one."""
    return {AS_WHEELS.get(package.name, package.name): package.version for package in packages}


def versions(packages: Sequence[LockedPackage]) -> dict[str, str]:
    return {package.name: package.version for package in packages}


def _bounded(requirements: Sequence[str]) -> dict[str, str]:
    """Versions that the wheels' requirements allow, as bounds on conda (its pip brings setuptools along, which they may limit), each
    with why it is there."""
    from packaging.requirements import Requirement

    parsed = [Requirement(text) for text in requirements]
    bounds = {
        f"{wanted.name} {wanted.specifier}": str(wanted)
        for wanted in parsed
        if wanted.specifier and not wanted.marker
    }
    return {
        bound: f"what the wheels ask for: {text}"
        for bound, text in bounds.items()
        if not conda.spec_errors([bound])
    }
