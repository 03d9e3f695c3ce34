"""The combinations that exist nearest to a request that has none.

How far a combination is: first how many choices differ (torch, CUDA, source, platform, Python, NCCL, cuDNN), then how many versions
lie between in those that do, then the newer release. The machine (GPU, driver, glibc) is as it is and is never given up.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from provision import catalog
from provision.catalog import minor, version_key
from provision.core.types import PLATFORM, Spec
from provision.resolver import constraints, python_versions
from provision.resolver.candidate import Candidate, candidates
from provision.resolver.constraints import CHANGEABLE, Axis

# From a CUDA build to a CPU build, or back, is farther than between any two versions.
ACROSS = 100


@dataclass(frozen=True, kw_only=True)
class Neighbor:
    """A combination that exists, as a request for it, and how far it is from what was asked for."""

    candidate: Candidate
    spec: Spec  # resolves to the candidate
    changed: tuple[Axis, ...]
    steps: int

    @property
    def distance(self) -> tuple[int, int]:
        return len(self.changed), self.steps

    @property
    def dropped(self) -> tuple[Axis, ...]:
        """What must not be asked for at all."""
        return tuple(
            axis
            for axis, value in (("nccl", self.spec.nccl), ("cudnn", self.spec.cudnn))
            if axis in self.changed and not value
        )

    @property
    def options(self) -> str:
        """What to give on the command line instead."""
        words = [
            "--torch",
            self.spec.torch,
            *(["--cuda", self.spec.cuda] if self.spec.cuda else ["--cpu"]),
        ]
        words += [] if self.spec.source == "auto" else ["--source", self.spec.source]
        for option, value in (
            ("--python", self.spec.python),
            ("--nccl", self.spec.nccl),
            ("--cudnn", self.spec.cudnn),
        ):
            words += [option, value] if value else []
        if "platform" in self.changed or self.spec.platforms != (PLATFORM,):
            words += [word for platform in self.spec.platforms for word in ("--platform", platform)]
        return shlex.join(words)


def nearest(spec: Spec, limit: int, leads_to: Callable[[Spec], Candidate | None]) -> list[Neighbor]:
    """The nearest combinations, each of which resolves to its candidate (leads_to: what a spec resolves to); of the patch releases of one
    minor release, only the newest. What runs on the machine only perhaps, or only by compiling PTX, is offered only where nothing
    runs as it is."""
    all_of = list(_neighbors(spec))
    plainly = [one for one in all_of if not any(constraints.on_machine(one.candidate, one.spec))]
    ordered = sorted(plainly or all_of, key=_order)
    seen: set[tuple[object, ...]] = set()
    found: list[Neighbor] = []
    for neighbor in ordered:
        alike = (
            neighbor.candidate.release.minor,
            *(getattr(neighbor.spec, field) for field in _TOLD),
        )
        if alike not in seen and (leading := _leading(neighbor, leads_to)):
            seen.add(alike)
            found.append(leading)
        if len(found) == limit:
            break
    return found


def _leading(neighbor: Neighbor, leads_to: Callable[[Spec], Candidate | None]) -> Neighbor | None:
    """The neighbor by words that lead to its candidate: those as they are, or with its source or its exact release said as well."""
    spec, candidate = neighbor.spec, neighbor.candidate
    for further in (
        {},
        {"source": candidate.source},
        {"torch": candidate.release.version},
        {"source": candidate.source, "torch": candidate.release.version},
    ):
        offered = dataclasses.replace(spec, **further)
        if leads_to(offered) is candidate:
            return dataclasses.replace(neighbor, spec=offered)
    return None


_TOLD = ("cuda", "source", "python", "nccl", "cudnn", "platforms")


def _order(neighbor: Neighbor) -> tuple[object, ...]:
    release = tuple(-number for number in version_key(neighbor.candidate.release.version))
    cuda = tuple(-number for number in version_key(neighbor.candidate.cuda or "0"))
    return (
        *neighbor.distance,
        neighbor.candidate.preference(neighbor.spec.platforms)[0],
        release,
        cuda,
    )


def _neighbors(spec: Spec) -> Iterator[Neighbor]:
    on_gpus = spec.gpu or spec.driver
    for candidate in candidates():
        neighbor = None if on_gpus and candidate.build is None else _toward(candidate, spec)
        if neighbor is not None and constraints.fits(candidate, neighbor.spec):
            yield neighbor


def _toward(candidate: Candidate, spec: Spec) -> Neighbor | None:
    """The request for this candidate that gives up the least, or None if no request comes to it."""
    exact = (
        spec.torch if re.fullmatch(r"\d+\.\d+(\.\d+)?", spec.torch) else candidate.release.version
    )
    changed: list[Axis] = []
    steps = 0
    for axis in CHANGEABLE:
        if constraints.passes(candidate, spec, axis):
            continue
        closer = CLOSER[axis](candidate, spec)
        if closer is None:
            return None
        spec, far = closer
        changed.append(axis)
        steps += far
    spec = dataclasses.replace(
        spec, cuda=candidate.cuda, torch=spec.torch if "torch" in changed else exact
    )
    return Neighbor(candidate=candidate, spec=spec, changed=tuple(changed), steps=steps)


Closer = tuple[Spec, int] | None  # the spec with one choice given up, and by how many versions


def _torch(candidate: Candidate, spec: Spec) -> Closer:
    minors = _minors()
    meant = (
        constraints.releases_of(spec.torch)
        or re.findall(r"\d+(?:\.\d+)*", spec.torch)
        or minors[-1:]
    )
    return dataclasses.replace(spec, torch=candidate.release.version), _apart(
        candidate.release.minor, map(minor, meant), minors
    )


def _cuda(candidate: Candidate, spec: Spec) -> Closer:
    if candidate.cuda is None or spec.cuda is None:
        return dataclasses.replace(spec, cuda=candidate.cuda), ACROSS
    meant = [cuda for cuda in _cudas() if constraints.starts(cuda, spec.cuda)] or [spec.cuda]
    return dataclasses.replace(spec, cuda=candidate.cuda), _apart(candidate.cuda, meant, _cudas())


def _source(candidate: Candidate, spec: Spec) -> Closer:
    return dataclasses.replace(spec, source=candidate.source), 0


def _platform(candidate: Candidate, spec: Spec) -> Closer:
    kept = (
        tuple(platform for platform in spec.platforms if platform in candidate.platforms)
        or candidate.platforms[:1]
    )
    kept = kept[:1] if candidate.is_named_differently(kept) else kept
    return (
        (dataclasses.replace(spec, platforms=kept), len(set(spec.platforms) - set(kept)))
        if kept
        else None
    )


def _python(candidate: Candidate, spec: Spec) -> Closer:
    choices = python_versions.supported(candidate, spec.platforms, companions=spec.companions)
    if not choices or spec.python is None:
        return None
    found = python_versions.nearest(choices, spec.python)
    return dataclasses.replace(spec, python=found), python_versions.steps(found, spec.python)


def _nccl(candidate: Candidate, spec: Spec) -> Closer:
    assert spec.nccl is not None
    asked = spec.nccl
    if candidate.build is None or (
        candidate.build.nccl is None and candidate.source != "conda-forge"
    ):
        return dataclasses.replace(spec, nccl=None), ACROSS
    if candidate.build.nccl is not None:
        return dataclasses.replace(spec, nccl=candidate.build.nccl), _apart(
            candidate.build.nccl, _meant(asked, _nccls()), _nccls()
        )
    floor = version_key(candidate.floor("nccl", spec.platforms)[0] or "0")
    fitting = [
        version
        for version, one in catalog.nccl_on_conda_forge().items()
        if one.runs_with(candidate.build.cuda) and version_key(version) >= floor
    ]
    if not fitting:
        return dataclasses.replace(spec, nccl=None), ACROSS
    found = min(
        reversed(fitting), key=lambda version: _apart(version, _meant(asked, _nccls()), _nccls())
    )
    return dataclasses.replace(spec, nccl=found), _apart(found, _meant(asked, _nccls()), _nccls())


def _cudnn(candidate: Candidate, spec: Spec) -> Closer:
    assert spec.cudnn is not None
    have = (
        (candidate.build.cudnn or candidate.floor("cudnn", spec.platforms)[0])
        if candidate.build
        else None
    )
    if have is None:
        return dataclasses.replace(spec, cudnn=None), ACROSS
    return dataclasses.replace(spec, cudnn=have), _apart(
        have, _meant(spec.cudnn, _cudnns()), _cudnns()
    )


CLOSER: dict[Axis, Callable[[Candidate, Spec], Closer]] = {
    "torch": _torch,
    "cuda": _cuda,
    "source": _source,
    "platform": _platform,
    "python": _python,
    "nccl": _nccl,
    "cudnn": _cudnn,
}


def _meant(asked: str, known: Sequence[str]) -> list[str]:
    """The known versions that 2.20 means, or what was asked for where none is known."""
    return [version for version in known if constraints.starts(version, asked)] or [asked]


def _apart(version: str, meant: Iterable[str], known: Sequence[str]) -> int:
    """How many known versions lie between a version and the nearest that was meant."""
    place = bisect.bisect_left(known, version_key(version), key=version_key)
    return min(
        abs(place - bisect.bisect_left(known, version_key(one), key=version_key)) for one in meant
    )


@functools.cache
def _minors() -> tuple[str, ...]:
    return tuple(dict.fromkeys(release.minor for release in catalog.releases().values()))


@functools.cache
def _cudas() -> tuple[str, ...]:
    return _sorted({candidate.cuda for candidate in candidates() if candidate.cuda})


@functools.cache
def _nccls() -> tuple[str, ...]:
    return _sorted(
        {
            candidate.build.nccl
            for candidate in candidates()
            if candidate.build and candidate.build.nccl
        }
        | catalog.nccl_on_conda_forge().keys()
    )


@functools.cache
def _cudnns() -> tuple[str, ...]:
    builds = [candidate.build for candidate in candidates() if candidate.build]
    return _sorted(
        {version for build in builds for version in (build.cudnn, build.cudnn_floor) if version}
    )


def _sorted(versions: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(versions, key=version_key))
