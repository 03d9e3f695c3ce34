"""Requirements -> packages of a new lock, for each platform, guarded: py-rattler solves conda's part,
and uv adds the wheels that conda does not provide. (lock_change changes an existing lock.)"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from provision import sources
from provision.adapters import conda
from provision.adapters import uv as wheels
from provision.adapters.uv import ResolveRequest
from provision.catalog import version_key
from provision.core.dataclass import frozen
from provision.core.errors import InvalidSpec, Unsolvable
from provision.core.platforms import Platform, host_platform
from provision.core.requirement_urls import absolute_requirement, absolute_sources
from provision.core.types import LockedPackage, Resolution
from provision.lockfile.cuda_guard import guard, refuse_second_torch
from provision.lockfile.diagnose.unsat_core import PinReasons
from provision.lockfile.input_files import LockInputs
from provision.sources.base import REQUESTED

Packages = tuple[LockedPackage, ...]
T = TypeVar("T")

# conda packages that the package index has under another name, by which wheels require them.
# Source: the dist-info they install.
WHEEL_NAMES = {"pytorch": "torch", "torchtriton": "triton"}


@frozen
class LocalPythonChannel:
    """A local channel with this machine's Python, and the glibc that its binaries need."""

    channel: str
    glibc: str


def solve(
    inputs: LockInputs,
    resolution: Resolution,
    *,
    local_python: LocalPythonChannel | None = None,
    solver: conda.Solver | None = None,
) -> Packages:
    """Every package of the environment on every platform, guarded.

    local_python: replaces the request's channels; such a lock is not portable.
    solver: has read the channels already, which saves time over many locks.
    """
    solver = solver or conda.Solver()
    packages: Packages = ()
    for platform in inputs.machines:
        joint = joint_solve(inputs, resolution, platform, local_python, solver)
        packages += joint.guarded(joint.solve(), resolution)
    return packages


def joint_solve(
    inputs: LockInputs,
    resolution: Resolution,
    platform: Platform,
    local_python: LocalPythonChannel | None,
    solver: conda.Solver,
) -> JointSolve:
    """The requests to conda's solver and, if there are pip requirements, to uv for one platform."""
    if local_python and platform != host_platform():
        raise InvalidSpec(
            f"Python would come from this machine ({host_platform()}), whose Python does "
            f"not run on {platform}.",
            advice=(
                "Name a reachable channel with --channel, or lock for this machine's platform only."
            ),
        )
    virtual_packages = dict(inputs.machines[platform])
    channels, as_of = inputs.channels, inputs.as_of
    if local_python:
        # This machine's Python needs this machine's glibc or newer, whatever the request assumes,
        # and its date is today.
        glibc = max(virtual_packages["__glibc"], local_python.glibc, key=version_key)
        virtual_packages["__glibc"] = glibc
        channels, as_of = (local_python.channel,), None
    conda_request = conda.SolveRequest(
        specs=inputs.conda,
        channels=channels,
        virtual_packages=tuple(virtual_packages.items()),
        platform=platform,
        as_of=as_of,
    )
    wheel_request = None
    chosen = {pin.requirement for pin in resolution.pins if pin.reason != REQUESTED}
    named = tuple(text for text in inputs.pip if text not in chosen)
    if inputs.pip:
        build_path = resolution.local_version.partition("+")[2]
        wheel_request = wheels.ResolveRequest(
            # uv chooses a version for what comes first, unless something conflicts with it later.
            requirements=tuple(
                absolute_requirement(text, inputs.folder)
                for text in sorted(inputs.pip, key=lambda text: text in chosen)
            ),
            python=resolution.python,
            glibc=virtual_packages["__glibc"],
            platform=platform,
            build_path=build_path if resolution.needs_local_build else None,
            as_of=inputs.as_of,
            sources=absolute_sources(inputs.sources, inputs.folder),
            torch=sources.by_name(resolution.source).torch_build(
                resolution.torch, resolution.cuda, platform
            ),
            mirrors=solver.mirrors,
        )
    reasons = PinReasons.of(resolution.pins, wheel_bounds(inputs.pip))
    return JointSolve(solver, conda_request, wheel_request, reasons, named)


@dataclass(frozen=True)
class JointSolve:
    """Two solvers that must agree on one platform.

    Wheels are for what conda does not provide. A Python package that both have comes from conda, in
    a version that the wheels allow: conda's pip brings the newest setuptools, which some releases of
    torch refuse, and which would leave vLLM at a release of 2023.

    named: the wheels that the user requested. They are as new as everything requested allows.
    """

    solver: conda.Solver
    conda: conda.SolveRequest
    wheels: wheels.ResolveRequest | None
    reasons: PinReasons
    named: tuple[str, ...] = ()

    @property
    def _wheel_requirements(self) -> tuple[str, ...]:
        return self.wheels.requirements if self.wheels else ()

    def solve(self) -> Packages:
        conda_packages = self.solve_conda()
        if self.wheels is None:
            return conda_packages
        if not self.named:
            # Unsolvable perhaps only because conda's packages are newer than the wheels allow.
            with suppress(Unsolvable):
                request = replace(self.wheels, provided=provided(conda_packages))
                return conda_packages + wheels.resolve(request)
        conda_packages = self._solve_conda_below_wheels(conda_packages)
        request = replace(self.wheels, provided=provided(conda_packages))
        return conda_packages + self._explained(wheels.resolve, request)

    def solve_conda(self, *bounds: str) -> Packages:
        """conda's part, within these bounds and those of the requests."""
        request = replace(self.conda, bounds=(*self.bounds(), *bounds))
        try:
            return self.solver.solve(request)
        except Unsolvable as error:
            from provision.lockfile.diagnose import conda as diagnose_conda

            raise diagnose_conda.explain(error, request, self.solver, self.reasons) from error

    def bounds(self) -> tuple[str, ...]:
        """The limits on conda's packages beyond its own requirements."""
        names = {bound: conda.spec_name(bound) for bound in wheel_bounds(self._wheel_requirements)}
        python_packages = self.solver.python_packages(self.conda, names.values())
        of_wheels = [bound for bound, name in names.items() if name in python_packages]
        return tuple(dict.fromkeys((*self.conda.bounds, *of_wheels)))

    def guarded(self, packages: Packages, resolution: Resolution) -> Packages:
        """The packages; raises CheckFailed with the cause if torch is not the requested build, and
        Unsolvable if it comes twice."""
        refuse_second_torch(packages, resolution)
        source = sources.by_name(resolution.source)
        requirements = self.conda.specs if source.manager == "conda" else self._wheel_requirements
        of_torch = [text for text in requirements if conda.spec_name(text) == source.torch_package]
        cause = f"The request is {self.reasons.describe(of_torch)}." if of_torch else ""
        guard(packages, resolution, cause)
        self._check_local_builds(packages)
        return packages

    def _check_local_builds(self, packages: Packages) -> None:
        """Raise Unsolvable for a wheel that says that it is for another torch, CUDA or C++ ABI."""
        build = self.wheels.torch if self.wheels else None
        for package in packages:
            if build is None or package.manager == "conda" or "+" not in package.version:
                continue
            if problem := build.mismatch(Version(package.version)):
                cuda = f"CUDA {build.cuda}" if build.cuda else "CPUs"
                raise Unsolvable(
                    f"{package.name} {package.version} {problem}, and torch is {build.torch} for "
                    f"{cuda}: importing it would fail.",
                    advice=f"Name the wheel for this torch, or a page that has it under `find_links`: "
                    f"`provision add NAME {package.name} -f PAGE`.",
                )

    def _solve_conda_below_wheels(self, conda_packages: Packages) -> Packages:
        """conda's part with nothing newer than what the wheels choose on their own.

        A version that the request gives for conda binds the wheels; others give way.
        """
        assert self.wheels is not None
        wheel_versions = self._wheel_versions(conda_packages, self.wheels)
        bounds: list[str] = []
        for package in conda_packages:
            version = wheel_versions.get(canonicalize_name(package.name))
            if not package.is_for_python or version is None:
                continue
            with suppress(InvalidVersion):  # where they cannot be compared, the bound is tried
                if Version(package.version) <= Version(version):
                    continue
            # conda and wheels may count versions differently (tzdata 2026.2, 2026b).
            bound = f"{package.name} <={version}"
            bounded = replace(self.conda, bounds=(*self.bounds(), *bounds, bound))
            if self.solver.is_solvable(bounded):
                bounds.append(bound)
        return self.solve_conda(*bounds) if bounds else conda_packages

    def with_newest(self, names: Collection[str], conda_packages: Packages) -> JointSolve:
        """The same with these wheels at the versions that they have if no other package must stay.

        A locked package that stays would otherwise hold a new one back: uv prefers to keep it.
        """
        assert self.wheels is not None
        free = replace(self.wheels, prefer={}, new_requirements=None)
        newest = self._wheel_versions(conda_packages, free)
        pins = tuple(f"{name}=={newest[name]}" for name in sorted(names) if name in newest)
        return replace(self, wheels=replace(self.wheels, constraints=pins, new_requirements=None))

    def _wheel_versions(self, conda_packages: Packages, request: ResolveRequest) -> dict[str, str]:
        """The versions by name that the wheels have without what only conda's packages need."""
        with_version = {conda.spec_name(spec) for spec in self.conda.specs}
        with_version.difference_update(self.conda.specs)
        binding = [package for package in conda_packages if package.name in with_version]
        request = replace(request, provided=provided(binding))
        return self._explained(wheels.resolve_versions, request)

    def _explained(self, resolve: Callable[[ResolveRequest], T], request: ResolveRequest) -> T:
        """The result for a request to uv. Raises Unsolvable with the cause."""
        try:
            return resolve(request)
        except wheels.NoWheelFits:
            raise  # says why itself
        except Unsolvable as error:
            from provision.lockfile.diagnose import uv as diagnose_uv

            raise diagnose_uv.explain(error, request, self.reasons) from error


def provided(packages: Sequence[LockedPackage]) -> dict[str, str]:
    """Name -> version of the packages that need no wheel.

    conda's pytorch is in it as torch: otherwise a wheel that needs torch would bring a second one.
    conda's graphviz is a C program, and the wheel of that name is not.
    """
    return {
        name: package.version
        for package in packages
        if package.is_for_python
        for name in wheel_names(package.name)
    }


def wheel_names(name: str) -> set[str]:
    """The names that the wheel of a conda package for Python may have.

    python-graphviz and msgpack-python hold the wheels graphviz and msgpack; python-dateutil and
    opencv-python are names of wheels as well.
    """
    if name in WHEEL_NAMES:
        return {WHEEL_NAMES[name]}
    return {name, name.removeprefix("python-"), name.removesuffix("-python")}


def wheel_bounds(requirements: Sequence[str]) -> dict[str, str]:
    """Bounds on conda's packages from the wheels' requirements, each with its reason.

    conda's pip brings setuptools, for one, which wheels may limit.
    """
    bounds = {}
    for text in requirements:
        requirement = Requirement(text)
        bound = f"{requirement.name} {requirement.specifier}"
        conditional = requirement.marker is not None
        if requirement.specifier and not conditional and not conda.spec_errors([bound]):
            bounds[bound] = f"required by the wheels: {requirement}"
    return bounds
