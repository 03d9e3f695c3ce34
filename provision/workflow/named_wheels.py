"""The wheels that a request names: they are as new as everything requested allows.

Servers such as vLLM require exactly one release of torch. The facts alone would choose the newest
torch, for which the index may have only a release of the server that is years old. So a request
that leaves the release of torch open gets the newest one with which the named wheels are the newest,
and what a lock still gives up is said. docs/choosing.md has the order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date

from packaging.requirements import Requirement
from packaging.version import Version

from provision import catalog, resolver, sources
from provision.adapters import uv
from provision.adapters.http import in_parallel
from provision.core.errors import ProvisionError, Unreachable, Unsolvable
from provision.core.package_names import package_name
from provision.core.paths import SPEC
from provision.core.requirement_urls import absolute_requirement, absolute_sources
from provision.core.spec_fields import Spec
from provision.core.types import HostGpus, Lock, Resolution
from provision.resolver.python_versions import steps
from provision.workflow.context import Context

# A named package this much older than its newest release is worth a warning.
OLD_RELEASE, OLD_DAYS = "old-release", 730


def with_locked_torch(spec: Spec, lock: Lock, machine: HostGpus, resolution: Resolution) -> Spec:
    """The request with the build of torch that its lock holds, if it leaves the release or the CUDA
    open and the facts alone choose another one. resolution: what they choose."""
    names = {source.torch_package for source in sources.REGISTRY}
    locked = {package.version for package in lock.packages if package.name in names}
    is_open = _leaves_torch_open(spec) or spec.cuda == "auto"
    if not is_open or _locked_version(resolution) in locked:
        return spec
    bases = {version.partition("+")[0] for version in locked}
    for release in catalog.matching_releases(spec.torch):
        if release.version in bases:
            for exact, other in _builds(replace(spec, torch=release.version), machine):
                if _locked_version(other) in locked:
                    return exact
    return spec


def with_served_cuda(context: Context, spec: Spec, machine: HostGpus) -> Spec:
    """The request with the newest CUDA of which an index has the build, if it is `auto`; the same if
    no index has one: then the solver says which is missing."""
    if spec.cuda != "auto":
        return spec
    newest = resolver.resolve(spec, machine)
    served = _served(spec, machine, _request(context, newest)) or spec
    if served.cuda not in (spec.cuda, newest.cuda):
        context.progress.info(
            f"CUDA {served.cuda}, not {newest.cuda}: no index that is configured has torch "
            f"{newest.local_version}"
        )
    return served


def fitting_wheels(
    context: Context,
    spec: Spec,
    machine: HostGpus,
    resolution: Resolution,
    served: Sequence[str] = (),
) -> Spec:
    """The request with the release of torch that its wheels go with and an index has, and with a
    Python and a glibc for which the wheels exist.

    resolution: what the facts alone choose. served: only these releases. What the request states
    stays, and all of it does if the wheels go with no release: then the solver says why.
    """
    is_open = _leaves_torch_open(spec)
    folder = context.folders.envs / (spec.name or "new")
    requirements = [absolute_requirement(text, folder) for text in spec.pip]
    releases: Sequence[str] = [resolution.torch]
    if is_open:
        releases = served or resolver.possible_releases(spec, machine)
        requirements.append("torch")  # of what is requested, uv decides the first first
    request = _request(context, resolution, *requirements)

    def is_served(release: str) -> bool:
        return _served(replace(spec, torch=release), machine, request) is not None

    if not spec.pip and (not is_open or _is_served(resolution, request)):
        return spec
    possible = releases
    if request.sources and len(releases) > 1:
        request, possible = _with_listed_wheels(spec, machine, request, releases)
    bounds = [f"torch>={possible[-1]}", f"<={possible[0]}"]
    bounds += [f"!={release}" for release in catalog.releases() if release not in possible]
    request = replace(request, constraints=(",".join(bounds),))
    try:
        packages = uv.resolve(request)
        # The oldest for which there are wheels of all packages, if that is not the assumed one.
        needed = [uv.wheel_glibc(package, request) for package in packages if package.is_archive]
        glibc = max(filter(None, needed), default=None)
    except Unreachable as error:
        if len(possible) > 1:
            context.progress.warn(
                f"torch {resolution.torch} is the newest, and may not be what the named wheels go "
                f"with: {error.message}"
            )
        return spec
    except Unsolvable:
        # A spec.yml that the user keeps would not hold the Python, and the lock would be stale.
        return spec if (folder / SPEC).exists() else _with_other_python(context, spec, request)
    except ProvisionError:
        return spec  # a lock says what is wrong; other verbs need no wheels
    versions = {package.name: package.version for package in packages}
    release = versions.get("torch", "").partition("+")[0]
    if is_open and release in possible:
        if not served and not is_served(release):
            served = [release for release in possible if is_served(release)]
            return fitting_wheels(context, spec, machine, resolution, served) if served else spec
        if release != resolution.torch:
            reason = f"no index that is configured has torch {resolution.local_version}"
            if release != next(filter(is_served, releases), release):
                names = map(package_name, spec.pip)
                named = [f"{name} {versions[name]}" for name in names if name in versions]
                reason = f"{', '.join(named)} {'goes' if len(named) == 1 else 'go'} with it"
            context.progress.info(f"torch {release}, not {resolution.torch}: {reason}")
            spec = replace(spec, torch=release)
    if glibc and not spec.glibc and not (folder / SPEC).exists():
        context.progress.info(
            f"every machine needs glibc {glibc}: for {resolution.glibc} some wheels do not exist"
        )
        spec = replace(spec, glibc=str(glibc))
    return spec


def _builds(spec: Spec, machine: HostGpus) -> Iterator[tuple[Spec, Resolution]]:
    """Each build that a request may mean for its release of torch, best first: the request for it,
    and what that comes to."""
    for exact in resolver.with_each_cuda(spec, machine):
        with suppress(ProvisionError):
            yield exact, resolver.resolve(exact, machine)


def _locked_version(resolution: Resolution) -> str:
    """The version of torch's package in a lock."""
    return resolution.local_version if resolution.needs_local_build else resolution.torch


def _served(spec: Spec, machine: HostGpus, request: uv.ResolveRequest) -> Spec | None:
    """The request for the best build that an index has."""
    builds = _builds(spec, machine)
    return next((exact for exact, build in builds if _is_served(build, request)), None)


def _is_served(resolution: Resolution, request: uv.ResolveRequest) -> bool:
    """Whether an index that is configured has the build of a release, which may be on PyTorch's own
    index alone."""
    if not resolution.needs_local_build:
        return True
    request = replace(request, build_path=resolution.local_version.partition("+")[2])
    try:
        listed = uv.index_releases("torch", request)
    except Unreachable:  # the solver says so
        return True
    return any(str(release.version) == resolution.local_version for release in listed)


def _with_listed_wheels(
    spec: Spec, machine: HostGpus, request: uv.ResolveRequest, possible: Sequence[str]
) -> tuple[uv.ResolveRequest, Sequence[str]]:
    """The request for the newest release for which pages list wheels, and all such releases."""
    fitting: dict[str, catalog.TorchBuild] = {}
    for release in possible:
        for _, resolution in _builds(replace(spec, torch=release), machine):
            build = _torch_build(resolution)
            with suppress(uv.NoWheelFits, Unreachable):
                uv.package_sources(replace(request, torch=build))
                fitting.setdefault(release, build)
    newest = next(iter(fitting.values()), None)
    return replace(request, torch=newest), list(fitting) or possible


def _torch_build(resolution: Resolution) -> catalog.TorchBuild:
    """What a wheel for torch must be made for."""
    return sources.by_name(resolution.source).torch_build(
        resolution.torch, resolution.cuda, resolution.platforms[0]
    )


def _with_other_python(context: Context, spec: Spec, request: uv.ResolveRequest) -> Spec:
    """The request with the Python nearest to the default for which its wheels exist; the same if
    it names one, or if there is none."""
    if spec.python is not None:
        return spec
    pythons = {python for release in catalog.releases().values() for python in release.python}
    for python in sorted(pythons, key=lambda python: steps(python, request.python)):
        other = replace(spec, python=python)
        try:
            resolver.resolve(other)
            uv.resolve_versions(replace(request, python=python))
        except ProvisionError:
            continue
        context.progress.info(f"Python {python}: for {request.python} the wheels do not exist")
        return other
    return spec


def report_older(
    context: Context, resolution: Resolution, lock: Lock, names: Collection[str] | None
) -> None:
    """Say which of the wheels that a request names are not the newest in its lock, and why.

    names: only of these packages."""
    locked = {
        package_name(package.name): package.version
        for package in lock.by("pip")
        if not package.direct
    }
    request = _request(context, resolution)
    reported = locked.keys() if names is None else locked.keys() & names
    named = [
        text for text in resolution.spec.pip if "@" not in text and package_name(text) in reported
    ]
    try:
        listed = dict(
            in_parallel(lambda text: uv.index_releases(package_name(text), request), named)
        )
        for text in named:
            version = locked[package_name(text)]
            _report_older(context, resolution, Requirement(text), version, listed[text])
    except Unreachable as error:
        context.progress.info(f"whether named packages have newer releases is not known: {error}")


def _report_older(
    context: Context,
    resolution: Resolution,
    requirement: Requirement,
    version: str,
    listed: Sequence[uv.IndexRelease],
) -> None:
    """version: the locked one. listed: by the index."""
    current = Version(version)
    newest = uv.newest_release(listed, requirement.specifier, current, None)
    if newest == current:
        return
    reason = f"has no wheel for Python {resolution.python} on {resolution.platforms[0]}"
    with_wheel = {release.version: release.glibc for release in listed if release.glibc}
    of_wheels = [release for release in listed if release.version in with_wheel]
    newest_wheel = uv.newest_release(of_wheels, requirement.specifier, current, None)
    if newest_wheel != current:
        newest = newest_wheel
        requirement.specifier = requirement.specifier & f"=={newest}"
        reason = _obstacle(context, resolution, str(requirement), with_wheel[newest])
    sentence = f"{requirement.name} {version}; {newest} {reason}"
    uploaded = {release.version: release.uploaded for release in listed}
    stated = [uploaded.get(current, ""), uploaded[newest]]
    days = 0
    if all(stated):
        older, newer = map(date.fromisoformat, stated)
        days = (newer - older).days
    if days < OLD_DAYS or OLD_RELEASE in resolution.spec.accept:
        context.progress.info(sentence)
        return
    context.progress.warn(
        f"{OLD_RELEASE}: {sentence}. The locked release is {days // 365} years older. "
        f"`accept: [{OLD_RELEASE}]` in spec.yml silences this warning"
    )


def _obstacle(context: Context, resolution: Resolution, newest: str, glibc: Version) -> str:
    """Why the newest release of a package is not in the lock. newest: a requirement of exactly it.
    glibc: the oldest for which it has a wheel."""
    assumed = str(max(Version(resolution.glibc), glibc))
    request = replace(_request(context, resolution, newest), glibc=assumed)
    for limits in ((f"torch=={resolution.torch}",), ()):
        with suppress(Unsolvable, Unreachable):
            versions = uv.resolve_versions(replace(request, constraints=limits))
            break
    else:
        return f"has requirements that nothing for Python {resolution.python} meets"
    release = versions.get("torch", resolution.torch).partition("+")[0]
    wanted = {"glibc": assumed, "torch": release}
    needed = {name: text for name, text in wanted.items() if text != getattr(resolution, name)}
    if not needed:
        return "does not go with the rest of the request"
    sentence = f"needs {' and '.join(map(' '.join, needed.items()))}"
    try:
        other = resolver.resolve(replace(resolution.spec, torch=release, glibc=assumed))
    except ProvisionError:
        return f"{sentence}, which has no build for this request"
    if not _is_served(other, request):
        return f"{sentence}, and no index that is configured has {other.local_version}"
    options = " ".join(f"--{name} {version}" for name, version in needed.items())
    return f"{sentence} (`{options}` gives it)"


def _leaves_torch_open(spec: Spec) -> bool:
    """Whether a request allows several releases of torch."""
    return spec.torch not in catalog.releases()


def _request(context: Context, resolution: Resolution, *requirements: str) -> uv.ResolveRequest:
    spec, platform = resolution.spec, resolution.platforms[0]
    return uv.ResolveRequest(
        requirements=requirements,
        python=resolution.python,
        glibc=resolution.glibc,
        platform=platform,
        as_of=spec.as_of,
        sources=absolute_sources(spec.package_sources, context.folders.envs / (spec.name or "new")),
        torch=None if _leaves_torch_open(spec) else _torch_build(resolution),
        mirrors=context.mirrors,
    )
