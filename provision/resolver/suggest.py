"""The existing combinations nearest to a request that has no build.

The distance counts first the choices that differ (torch, CUDA, source, platform, Python, NCCL,
cuDNN), then the versions between them; of equals the newer release comes first. The machine (GPU,
driver, glibc) never changes.
"""

from __future__ import annotations

import bisect
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from provision import catalog, sources
from provision.catalog import Library, minor, version_key
from provision.core.dataclass import dataclass
from provision.core.platforms import PLATFORM
from provision.core.spec_fields import Spec
from provision.resolver import constraints, python_versions
from provision.resolver.constraints import CHANGEABLE, MACHINE
from provision.sources.base import LIBRARY_TITLES, Axis, Candidate, means

# From a CUDA build to a CPU build, or back, is farther than between any two versions.
ACROSS = 100
# Only the newest patch is offered of those that agree in these fields and in the minor release.
SAME_OFFER = ("cuda", "source", "python", "nccl", "cudnn", "platforms")


@dataclass(frozen=True, kw_only=True)
class Neighbor:
    """An existing combination, as a request for it, and its distance from the refused request."""

    candidate: Candidate
    spec: Spec  # resolves to the candidate
    changed: tuple[Axis, ...]
    steps: int

    @property
    def distance(self) -> tuple[int, int]:
        return len(self.changed), self.steps

    @property
    def dropped(self) -> tuple[Axis, ...]:
        """The libraries whose version the new request must leave open."""
        return tuple(
            library
            for library in LIBRARY_TITLES
            if library in self.changed and not self.spec.library(library)
        )

    @property
    def options(self) -> str:
        """The options for the command line."""
        spec = self.spec
        arguments = ["--torch", spec.torch]
        arguments += ["--cuda", spec.cuda] if spec.cuda else ["--cpu"]
        if spec.source != sources.AUTO:
            arguments += ["--source", spec.source]
        for option, value in (
            ("--python", spec.python),
            ("--nccl", spec.nccl),
            ("--cudnn", spec.cudnn),
        ):
            if value:
                arguments += [option, value]
        if "platform" in self.changed or spec.platforms != (PLATFORM,):
            for platform in spec.platforms:
                arguments += ["--platform", platform]
        return shlex.join(arguments)


def nearest(spec: Spec, limit: int, leads_to: Callable[[Spec], Candidate | None]) -> list[Neighbor]:
    """The nearest combinations. leads_to: resolves a spec; each neighbor's leads to its candidate.

    Of a minor release only the newest patch is offered. Builds that only may run on the machine, or
    only by compiling PTX, are offered only if no build runs directly.
    """
    possible = list(_neighbors(spec))
    certain = [
        neighbor
        for neighbor in possible
        if not any(constraints.violations(neighbor.candidate, neighbor.spec, MACHINE))
    ]
    offered: set[tuple[object, ...]] = set()
    neighbors: list[Neighbor] = []
    for neighbor in sorted(certain or possible, key=_order):
        same = tuple(getattr(neighbor.spec, field) for field in SAME_OFFER)
        offer = (neighbor.candidate.release.minor, *same)
        if offer in offered:
            continue
        leading = _with_leading_options(neighbor, leads_to)
        if leading is None:
            continue
        offered.add(offer)
        neighbors.append(leading)
        if len(neighbors) == limit:
            break
    return neighbors


def _with_leading_options(
    neighbor: Neighbor, leads_to: Callable[[Spec], Candidate | None]
) -> Neighbor | None:
    """The neighbor with options that lead to its candidate: as they are, or with its source, its
    exact release, or both."""
    candidate = neighbor.candidate
    for torch in (neighbor.spec.torch, candidate.release.version):
        for source in (neighbor.spec.source, candidate.source.name):
            offered = replace(neighbor.spec, torch=torch, source=source)
            if leads_to(offered) is candidate:
                return replace(neighbor, spec=offered)
    return None


def _order(neighbor: Neighbor) -> tuple[object, ...]:
    candidate = neighbor.candidate
    preference = candidate.source.preference(candidate, neighbor.spec.platforms)[0]
    newer_release = tuple(-number for number in version_key(candidate.release.version))
    newer_cuda = tuple(-number for number in version_key(candidate.cuda or "0"))
    return (*neighbor.distance, preference, newer_release, newer_cuda)


def _neighbors(spec: Spec) -> Iterator[Neighbor]:
    needs_gpu = spec.gpu or spec.driver
    for candidate in sources.candidates():
        if needs_gpu and candidate.build is None:
            continue
        if candidate.build and candidate.build.unreleased:
            continue
        neighbor = _neighbor(candidate, spec)
        if neighbor is not None and constraints.fits(candidate, neighbor.spec):
            yield neighbor


def _neighbor(candidate: Candidate, spec: Spec) -> Neighbor | None:
    """The request for this candidate that gives up the least, or None if there is none."""
    changed: list[Axis] = []
    steps = 0
    closer = spec
    for axis in CHANGEABLE:
        if constraints.fits(candidate, closer, axis):
            continue
        change = CHANGES[axis](candidate, closer)
        if change is None:
            return None
        closer, distance = change
        changed.append(axis)
        steps += distance
    torch = closer.torch
    if "torch" not in changed and not catalog.EXACT.fullmatch(spec.torch):
        torch = candidate.release.version
    closer = replace(closer, cuda=candidate.cuda, torch=torch)
    return Neighbor(candidate=candidate, spec=closer, changed=tuple(changed), steps=steps)


# The spec with one choice given up, and by how many versions; None if that choice cannot be changed
# so that the candidate fits.
Change = tuple[Spec, int] | None


def _change_torch(candidate: Candidate, spec: Spec) -> Change:
    minors = _minors()
    requested = constraints.releases_of(spec.torch) or re.findall(r"\d+(?:\.\d+)*", spec.torch)
    distance = _distance(candidate.release.minor, map(minor, requested or minors[-1:]), minors)
    return replace(spec, torch=candidate.release.version), distance


def _change_cuda(candidate: Candidate, spec: Spec) -> Change:
    changed = replace(spec, cuda=candidate.cuda)
    if candidate.cuda is None or spec.cuda is None:
        return changed, ACROSS
    return changed, _distance(candidate.cuda, _matching(spec.cuda, _cudas()), _cudas())


def _change_source(candidate: Candidate, spec: Spec) -> Change:
    return replace(spec, source=candidate.source.name), 0


def _change_platform(candidate: Candidate, spec: Spec) -> Change:
    platforms = candidate.common_platforms(spec.platforms) or candidate.platforms[:1]
    if candidate.is_named_differently(platforms):
        platforms = platforms[:1]
    if not platforms:
        return None
    dropped = set(spec.platforms) - set(platforms)
    return replace(spec, platforms=platforms), len(dropped)


def _change_python(candidate: Candidate, spec: Spec) -> Change:
    pythons = python_versions.supported(candidate, spec.platforms, companions=spec.companions)
    if not pythons or spec.python is None:
        return None
    python = python_versions.nearest(pythons, spec.python)
    distance = python_versions.steps(python, spec.python)
    return replace(spec, python=python), distance


def _change_library(library: Library, candidate: Candidate, spec: Spec) -> Change:
    scale = _library_versions(library)
    requested = _matching(spec.library(library) or "", scale)
    versions = list(_possible_versions(library, candidate, spec))
    closest = min(versions, key=lambda version: _distance(version, requested, scale), default=None)
    distance = _distance(closest, requested, scale) if closest else ACROSS
    if library == "nccl":
        return replace(spec, nccl=closest), distance
    return replace(spec, cudnn=closest), distance


def _possible_versions(library: Library, candidate: Candidate, spec: Spec) -> Iterator[str]:
    """The versions of a library, newest first, that an environment with a build can have: its own,
    if it is the same on all platforms of the request, or those that the solver may choose."""
    build = candidate.build
    if build is None:
        return
    platforms = candidate.common_platforms(spec.platforms)
    carried = {candidate.build_on(platform).library(library).version for platform in platforms}
    own = carried.pop() if len(carried) == 1 else None
    if own:
        yield own
    elif candidate.source.solver_chooses_libraries:
        floor = candidate.floor(library, spec.platforms)[0]
        if library == "cudnn" and floor:
            yield floor
        elif library == "nccl":
            for version, entry in reversed(catalog.nccl_on_conda_forge().items()):
                if entry.runs_with(build.cuda) and version_key(version) >= version_key(
                    floor or "0"
                ):
                    yield version


CHANGES: dict[Axis, Callable[[Candidate, Spec], Change]] = {
    "torch": _change_torch,
    "cuda": _change_cuda,
    "source": _change_source,
    "platform": _change_platform,
    "python": _change_python,
    "nccl": partial(_change_library, "nccl"),
    "cudnn": partial(_change_library, "cudnn"),
}


def _matching(version: str, scale: Sequence[str]) -> list[str]:
    """The versions of the scale that 2.20 means, or the version itself if there is none."""
    return [entry for entry in scale if means(version, entry)] or [version]


def _distance(version: str, requested: Iterable[str], scale: Sequence[str]) -> int:
    """The number of versions of the scale between a version and the nearest that is requested."""
    position = _position(version, scale)
    return min(abs(position - _position(other, scale)) for other in requested)


def _position(version: str, scale: Sequence[str]) -> int:
    return bisect.bisect_left(scale, version_key(version), key=version_key)


@catalog.cached
def _minors() -> tuple[str, ...]:
    return tuple(dict.fromkeys(release.minor for release in catalog.releases().values()))


@catalog.cached
def _cudas() -> tuple[str, ...]:
    return _sorted({candidate.cuda for candidate in sources.candidates() if candidate.cuda})


@catalog.cached
def _library_versions(library: Library) -> tuple[str, ...]:
    versions = set(catalog.nccl_on_conda_forge()) if library == "nccl" else set()
    for candidate in sources.candidates():
        if candidate.build:
            version, floor, _ = candidate.build.library(library)
            versions |= {each for each in (version, floor) if each}
    return _sorted(versions)


def _sorted(versions: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(versions, key=version_key))
