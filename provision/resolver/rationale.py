"""Every decision about a candidate, with reason and source: for `matrix explain`, the passport and
comments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from provision import catalog, sources
from provision.core.spec_fields import DEFAULT_PACKAGE_KEYS, Spec
from provision.core.types import Choice
from provision.resolver import constraints, python_versions
from provision.resolver.pins import PYTHON_REASON, RDMA_REASON, RDMA_SOURCE
from provision.sources.base import NO_SOURCE, NOT_KNOWN, REQUESTED, Candidate

# conda-lock's own default for Linux (its default-virtual-packages.yaml): what a 2018 distribution
# has.
DEFAULT_GLIBC = "2.28"
GLIBC_SOURCE = "conda-lock's default-virtual-packages.yaml"


def choices(
    request: Spec, described: Spec, settled: Spec, candidate: Candidate, channels: tuple[str, ...]
) -> Iterator[Choice]:
    """described: the request with the machine that it is for; settled: with what it leaves open
    made exact."""
    source = candidate.source
    yield _torch(request, candidate)
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
        source=python_versions.source_of(candidate, settled.platforms[0]) or NO_SOURCE,
    )
    if candidate.build:
        yield _cuda(described, candidate)
        yield source.library_choice("nccl", candidate, settled)
        yield _driver(settled, candidate)
        yield source.library_choice("cudnn", candidate, settled)
        yield _triton(candidate)
        yield _architectures(settled, candidate)
    for companion in source.companions(candidate.release):
        if settled.companions:
            yield source.companion_choice(companion)
        else:
            yield _left_out(companion.name, "--no-companions")
    yield _glibc(settled, candidate)
    yield _platforms(request, candidate)
    yield source.channels_choice(candidate, request, channels)
    if settled.infiniband:
        yield Choice(what="infiniband", value="rdma-core", reason=RDMA_REASON, source=RDMA_SOURCE)
    for key in DEFAULT_PACKAGE_KEYS:
        # Each companion has its own choice, above.
        if key.name != "companions" and not getattr(settled, key.name):
            yield _left_out(key.name, key.negative_option)


def _platforms(request: Spec, candidate: Candidate) -> Choice:
    reason, source = f"the build exists for {', '.join(candidate.platforms)}", candidate.origin
    for gpu in map(catalog.find_gpu, request.gpu):
        if gpu.platform:
            reason += f"; {gpu.name} is on one module with an Arm CPU"
            source += f"; {gpu.platform_source}"
    return Choice(
        what="platforms", value=", ".join(request.platforms), reason=reason, source=source
    )


def _left_out(what: str, option: str) -> Choice:
    return Choice(what=what, value="left out", reason=f"requested with {option}", source="spec.yml")


def glibc(spec: Spec, candidate: Candidate) -> str:
    """The glibc that the solvers may assume of the machine."""
    if spec.glibc:
        return spec.glibc
    needed = candidate.glibc(spec.platforms)[0] or DEFAULT_GLIBC
    return max(DEFAULT_GLIBC, needed, key=catalog.version_key)


def driver_floor(spec: Spec, candidate: Candidate) -> str | None:
    """The oldest driver that runs the build, if a source says for one of the platforms."""
    toolkit = candidate.toolkit
    if toolkit and any(platform in toolkit.driver_platforms for platform in spec.platforms):
        return toolkit.driver_floor
    return None


def nccl(spec: Spec, candidate: Candidate) -> str | None:
    """The NCCL that is known before solving: the build's, or the request's if the solver
    chooses."""
    build = candidate.build_for(spec.platforms[0])
    if build is None:
        return None
    if build.nccl is None and candidate.source.solver_chooses_libraries:
        return spec.nccl
    return build.nccl


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


def _torch(request: Spec, candidate: Candidate) -> Choice:
    version = candidate.release.version
    if request.torch == version:
        reason = REQUESTED
    elif request.torch == "latest":
        reason = "newest release in the table"
    else:
        table = "on the package index" if candidate.release.from_index else "in the table"
        reason = f"newest {request.torch} release {table}"
        if constraints.releases_of(request.torch)[-1] != version:
            reason += " that fits the rest"
        if request.pip:
            reason += "; a new lock asks the index whether the named wheels go with it"
    return Choice(
        what="torch",
        value=version,
        reason=reason,
        source=candidate.source.origin(candidate.release),
    )


def _cuda(described: Spec, candidate: Candidate) -> Choice:
    assert candidate.build is not None
    if described.cuda == "auto":
        machine = list(described.gpu)
        if described.driver:
            machine.append(f"driver {described.driver}")
        reason = f"newest of this release that {' and '.join(machine)} can run"
    elif described.cuda == candidate.cuda:
        reason = REQUESTED
    else:
        reason = f"newest {described.cuda}.x of this release"
    build = candidate.build
    return Choice(what="cuda", value=build.cuda, reason=reason, source=build.source)


def _triton(candidate: Candidate) -> Choice:
    assert candidate.build is not None
    version = candidate.build.triton or NOT_KNOWN
    return Choice(
        what="triton",
        value=version.removeprefix("=="),
        reason="what torch requires",
        source=candidate.build.triton_source or NO_SOURCE,
    )


def _driver(spec: Spec, candidate: Candidate) -> Choice:
    toolkit = candidate.toolkit
    floor = driver_floor(spec, candidate)
    reason = "oldest driver that runs this CUDA"
    if toolkit and floor is None:
        documented = ", ".join(toolkit.driver_platforms)
        reason += f": {toolkit.driver_floor} on {documented}, and no source says for "
        reason += ", ".join(spec.platforms)
    return Choice(
        what="driver",
        value=f">={floor}" if floor else NOT_KNOWN,
        reason=reason,
        source=toolkit.driver_source if toolkit else NO_SOURCE,
    )


def _architectures(spec: Spec, candidate: Candidate) -> Choice:
    build = candidate.build_on(spec.platforms[0])
    if build.architectures is None:
        toolkit = candidate.toolkit
        reason, source = NO_SOURCE, NO_SOURCE
        if toolkit:
            reason += f"; CUDA {build.cuda} itself compiles for {toolkit.capability_min} and newer"
            source = toolkit.capability_source
        return Choice(what="gpu", value=NOT_KNOWN, reason=reason, source=source)
    reason = "GPU code in the build; code for sm_80 also runs on 8.6"
    if build.ptx is True:
        reason += "; newer GPUs compile its PTX"
    elif build.ptx is False:
        reason += "; it holds no PTX for newer ones"
    return Choice(
        what="gpu",
        value=" ".join(build.architectures),
        reason=reason,
        source=build.architectures_source or NO_SOURCE,
    )


def _glibc(spec: Spec, candidate: Candidate) -> Choice:
    value = glibc(spec, candidate)
    needed, source = candidate.glibc(spec.platforms)
    needs = f"the build needs {needed}" if needed else "what the build needs is not known"
    if spec.glibc:
        reason = f"{REQUESTED}; {needs}"
    elif needed == value:
        reason = "what the build needs"
    else:
        reason = f"our default; {needs}"
        source = source or GLIBC_SOURCE
    return Choice(what="glibc", value=f">={value}", reason=reason, source=source or NO_SOURCE)
