"""Every decision about a candidate, with reason and source: for `matrix explain`, the passport and
comments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from provision import catalog, sources
from provision.catalog import Build
from provision.catalog.mismatches import NO_SOURCE
from provision.core.platforms import PLATFORM
from provision.core.spec_fields import Spec
from provision.core.types import Choice
from provision.resolver import constraints, python_versions
from provision.resolver.pins import PYTHON_REASON
from provision.sources.base import (
    COMPANION,
    NOT_KNOWN,
    REQUESTED,
    Candidate,
    torch_reason,
)

# conda-lock's own default for Linux (its default-virtual-packages.yaml): what a 2018 distribution
# has.
DEFAULT_GLIBC = "2.28"
NCCL = re.compile(r"(?:\S+::)?nccl *={1,2} *([\d.]+?)(?:\.\*)?")
GLIBC_SOURCE = "conda-lock's default-virtual-packages.yaml"


def choices(
    request: Spec, described: Spec, settled: Spec, candidate: Candidate, channels: tuple[str, ...]
) -> Iterator[Choice]:
    """described: the request with the machine that it is for; settled: with what it leaves open
    made exact."""
    release, source = candidate.release, candidate.source
    platform = settled.platforms[0]
    yield Choice(
        what="torch",
        value=release.version,
        reason=torch_reason(request, candidate),
        source=source.origin(release),
    )
    yield Choice(
        what="source",
        value=source.name,
        reason=source_reason(replace(described, cuda=candidate.cuda), candidate),
        source=candidate.origin,
    )
    yield Choice(
        what="python",
        value=settled.python or "",
        reason=PYTHON_REASON,
        source=python_versions.source_of(candidate, platform) or NO_SOURCE,
    )
    build = candidate.build_for(platform)
    if build is not None:
        yield from _of_build(described, settled, candidate, build)
    for companion in source.companions(release) if settled.companions else ():
        if companion.version:
            yield Choice(
                what=companion.name,
                value=companion.version,
                reason=COMPANION,
                source=companion.source,
            )
    needed, glibc_source = candidate.glibc(settled.platforms)
    reason = (
        f"what the build needs ({needed or NOT_KNOWN}), but at least our default {DEFAULT_GLIBC}"
    )
    yield Choice(
        what="glibc",
        value=f">={glibc(settled, candidate)}",
        reason=REQUESTED if settled.glibc else reason,
        source=glibc_source or GLIBC_SOURCE,
    )
    reason, channel_source = source.channels_reason
    if request.channels:
        reason, channel_source = "in the order of the request", "spec.yml"
    yield Choice(what="channels", value=", ".join(channels), reason=reason, source=channel_source)


def _of_build(
    described: Spec, settled: Spec, candidate: Candidate, build: Build
) -> Iterator[Choice]:
    """What a build for GPUs contains and needs. build: on the first platform."""
    exact = described.cuda == candidate.cuda
    yield Choice(
        what="cuda",
        value=build.cuda,
        reason=REQUESTED if exact else "newest that the request and its machine allow",
        source=build.source,
    )
    yield candidate.source.library_choice("nccl", candidate, settled)
    floor = driver_floor(settled, candidate)
    yield Choice(
        what="driver",
        value=f">={floor}" if floor else NOT_KNOWN,
        reason="oldest driver that runs this CUDA",
        source=candidate.toolkit.driver_source if candidate.toolkit else NO_SOURCE,
    )
    yield candidate.source.library_choice("cudnn", candidate, settled)
    yield Choice(
        what="triton",
        value=(build.triton or NOT_KNOWN).removeprefix("=="),
        reason="what torch requires",
        source=build.triton_source or NO_SOURCE,
    )
    ptx: dict[bool | None, str] = {
        True: "newer GPUs compile its PTX",
        False: "it holds no PTX for newer ones",
    }
    yield Choice(
        what="gpu",
        value=" ".join(build.architectures or (NOT_KNOWN,)),
        reason=f"GPU code in the build; {ptx.get(build.ptx, 'whether it holds PTX is not known')}",
        source=build.architectures_source or NO_SOURCE,
    )


def glibc(spec: Spec, candidate: Candidate) -> str:
    """The glibc that the solvers may assume of the machine."""
    if spec.glibc:
        return spec.glibc
    needed = candidate.glibc(spec.platforms)[0] or DEFAULT_GLIBC
    return max(DEFAULT_GLIBC, needed, key=catalog.version_key)


def driver_floor(spec: Spec, candidate: Candidate) -> str | None:
    """The oldest driver that runs the build, if a source says for one of the platforms."""
    toolkit = candidate.toolkit if PLATFORM in spec.platforms else None
    return toolkit.driver_floor if toolkit else None


def nccl(spec: Spec, candidate: Candidate) -> str | None:
    """The NCCL that is known before solving: the build's, or that of `conda:` if the solver
    chooses."""
    build = candidate.build_for(spec.platforms[0])
    if build is None or build.nccl or not candidate.source.solver_chooses_libraries:
        return build.nccl if build else None
    versions = filter(None, map(NCCL.fullmatch, spec.conda))
    return next((match[1] for match in versions), None)


def source_reason(described: Spec, candidate: Candidate) -> str:
    """Why a build comes from its source. described: the request with the machine that it is for."""
    if described.source != sources.AUTO:
        return "requested with --source"
    rivals = [
        rival
        for rival in sources.candidates_of(candidate.release.version)
        if rival.cuda == candidate.cuda and constraints.fits(rival, described, "platform")
    ]
    preferred = min(
        rivals, key=lambda rival: rival.source.preference(rival, described.platforms)[0]
    )
    if preferred is candidate:
        return candidate.source.preference(candidate, described.platforms)[1]
    reason = f"usually it is {preferred.source.title}"
    violation = next(constraints.violations(preferred, described), None)
    return f"{reason}, but {violation.fact}" if violation else reason
