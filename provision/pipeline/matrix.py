"""Spec -> Resolution: exact versions and pins with reasons, from the facts alone. Pure: no network, no clock, no machine.

A combination that does not exist is refused with the nearest ones that do; nothing is ever rounded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from provision import compat
from provision.compat import Build, Release, version_key
from provision.errors import NoSuchBuild
from provision.model import BuildSource, Choice, Manager, Pin, Resolution, Spec

SOURCES: tuple[BuildSource, ...] = ("wheels", "pytorch", "conda-forge")
# Supported by every release from 1.13 on, and the newest of which that is true of wheels and both channels.
DEFAULT_PYTHON = "3.11"
# conda-lock's own default for Linux (its default-virtual-packages.yaml): what a 2018 distribution has.
DEFAULT_GLIBC = "2.28"
KERNEL_LINUX = "5.10"  # from the same file
NEAREST = 6
# The same whether asked for or by default: the first build writes the default into spec.yml, and must render the same again.
PYTHON_REASON = "one minor version per environment, and this build supports it"


def resolve(spec: Spec) -> Resolution:
    """Match a spec with the facts. Raises NoSuchBuild with what exists instead."""
    release, build, source, why = _choose(spec)
    python = _python(spec, release, build, source)
    _check_nccl(spec, release, build, source)
    name = spec.name or _name(spec, python, source)
    local = _local_version(release, build, source)
    toolkit = compat.toolkits().get(build.cuda) if build else None
    driver, driver_source = (toolkit.driver_floor, toolkit.driver_source) if toolkit else (None, "")
    glibc = max(DEFAULT_GLIBC, (build.glibc if build else None) or DEFAULT_GLIBC, key=version_key)
    nccl = build.nccl if build else None
    choices = [
        Choice(what="torch", value=release.version, reason=_torch_reason(spec, release), source="releases.yml"),
        Choice(what="source", value=source, reason=why, source=build.source if build else "--cpu"),
        Choice(what="python", value=python, reason=PYTHON_REASON, source=_python_source(release, build)),
    ]
    if build:
        known = nccl or ("chosen by the solver" if source == "conda-forge" else "not known")
        choices += [
            Choice(what="cuda", value=build.cuda, reason="asked for", source=build.source),
            Choice(what="nccl", value=known, reason=_nccl_reason(build, source), source=build.nccl_source or "no source says"),
            Choice(
                what="driver",
                value=f">={driver}" if driver else "not known",
                reason="oldest driver that runs this CUDA",
                source=driver_source,
            ),
        ]
    return Resolution(
        spec=dataclasses.replace(spec, name=name, python=python),
        torch=release.version,
        local_version=local,
        source=source,
        cuda=build.cuda if build else None,
        python=python,
        nccl=nccl or (spec.nccl if source == "conda-forge" else None),
        cudnn=build.cudnn if build else None,
        architectures=(build.architectures if build else None) or (),
        glibc=glibc,
        driver_floor=driver,
        needs_local_build=source == "wheels" and not (build and build.on_pypi),
        channels=_channels(spec, source),
        pins=tuple(_pins(spec, release, build, source, python, local)),
        virtual_packages=_virtual_packages(build, glibc),
        choices=tuple(choices),
    )


def auto_source(release: Release, cuda: str | None) -> tuple[BuildSource, str] | None:
    """Which source `auto` means for a build, and why: facts decide, never what the network answers."""
    if cuda is None:
        return "wheels", "CPU builds come from PyTorch's own wheels"
    by_cuda = {name: _build(release, name, cuda) for name in SOURCES}
    wheel = by_cuda["wheels"]
    if wheel and wheel.on_pypi:
        return "wheels", f"the package index's default build of {release.version} has CUDA {cuda}"
    if by_cuda["pytorch"]:
        return "pytorch", f"the default wheel of {release.version} has another CUDA; the pytorch channel has {cuda}"
    if by_cuda["conda-forge"]:
        return "conda-forge", f"neither the default wheel nor the pytorch channel has {release.version} with CUDA {cuda}"
    if wheel:
        return "wheels", f"only PyTorch's own wheel index has {release.version} with CUDA {cuda}"
    return None


def _choose(spec: Spec) -> tuple[Release, Build | None, BuildSource, str]:
    candidates = compat.matching_releases(spec.torch)
    for release in reversed(candidates):  # newest patch release first
        chosen = auto_source(release, spec.cuda) if spec.source == "auto" else (spec.source, "asked for with --source")
        if chosen is None:
            continue
        source, why = chosen
        build = _build(release, source, spec.cuda) if spec.cuda else None
        if build or spec.cuda is None:
            return release, build, source, why
    raise _no_such_build(spec, candidates)


def _build(release: Release, source: BuildSource, cuda: str) -> Build | None:
    return next((build for build in release.builds(source) if build.cuda == cuda), None)


def _no_such_build(spec: Spec, candidates: Sequence[Release]) -> NoSuchBuild:
    where = "any source" if spec.source == "auto" else f"source {spec.source}"
    same_torch = [f"{name}: {_cudas(candidates, name)}" for name in SOURCES]
    return NoSuchBuild(
        f"torch {spec.torch} with CUDA {spec.cuda} does not exist in {where}.",
        advice=f"torch {spec.torch} exists with CUDA - {'; '.join(same_torch)}. CUDA {spec.cuda} exists with torch - {_torches(spec)}.",
    )


def _cudas(candidates: Iterable[Release], source: BuildSource) -> str:
    found = {
        build.cuda + ("" if build.on_pypi or source != "wheels" else "*") for release in candidates for build in release.builds(source)
    }
    listed = ", ".join(sorted(found, key=lambda cuda: version_key(cuda.rstrip("*")))) or "none"
    return listed + (" (* from PyTorch's own wheel index)" if "*" in listed else "")


def _torches(spec: Spec) -> str:
    """The releases nearest to the one asked for that have this CUDA, per source."""
    order = list(compat.releases().values())
    asked = version_key(spec.torch)
    answers = []
    for source in SOURCES:
        having = {release.minor for release in order if _build(release, source, spec.cuda or "")}
        near = sorted(having, key=lambda minor: [abs(a - b) for a, b in zip(version_key(minor), asked)])[:NEAREST]
        answers.append(f"{source}: {', '.join(sorted(near, key=version_key)) or 'none'}")
    return "; ".join(answers)


def _python(spec: Spec, release: Release, build: Build | None, source: BuildSource) -> str:
    supported = (build.python if build else None) or release.python  # where no source says, what the wheels have
    fewer = release.companions_python if spec.companions and source == "wheels" else None
    if spec.python is None:
        choices = [minor for minor in supported if fewer is None or minor in fewer]
        return min(choices, key=lambda minor: abs(version_key(minor)[1] - version_key(DEFAULT_PYTHON)[1]))
    if spec.python not in supported:
        raise NoSuchBuild(
            f"torch {release.version} has no build for Python {spec.python}.",
            advice=f"It has builds for {', '.join(supported)} ({_python_source(release, build)}).",
        )
    if fewer is not None and spec.python not in fewer:
        raise NoSuchBuild(
            f"torchvision {release.torchvision}, which goes with torch {release.version}, has no wheel for Python {spec.python}.",
            advice=f"It has wheels for {', '.join(fewer)}; take one of these, or leave it out with --no-companions.",
        )
    return spec.python


def _python_source(release: Release, build: Build | None) -> str:
    return (build.python_source if build else None) or release.python_source


def _check_nccl(spec: Spec, release: Release, build: Build | None, source: BuildSource) -> None:
    """NCCL is a result of the build, except on conda-forge, where the solver may choose."""
    if spec.nccl is None or source == "conda-forge":
        return
    have = build.nccl if build else None
    if have is not None and (have == spec.nccl or have.startswith(spec.nccl + ".")):
        return
    others = [
        f"{other.version} + CUDA {candidate.cuda} ({candidate.tag})"
        for other in compat.releases().values()
        for candidate in other.wheels
        if candidate.nccl and (candidate.nccl == spec.nccl or candidate.nccl.startswith(spec.nccl + "."))
    ]
    carried = f"carries NCCL {have}" if have else "carries an NCCL whose version is not known" if build else "is a CPU build without NCCL"
    raise NoSuchBuild(
        f"torch {release.version} ({source}) {carried}, not {spec.nccl}; it cannot be exchanged.",
        advice=f"Builds with NCCL {spec.nccl}: {', '.join(others[:NEAREST]) or 'none known'}; or take it from --source conda-forge.",
    )


def _name(spec: Spec, python: str, source: BuildSource) -> str:
    """Semantic, from what was asked for; a source that `auto` would not choose is part of it."""
    flavor = f"cuda{spec.cuda}" if spec.cuda else "cpu"
    name = f"torch{spec.torch}-{flavor}-py{python.replace('.', '')}"
    if spec.source == "auto":
        return name
    chosen = next((found for release in reversed(compat.matching_releases(spec.torch)) if (found := auto_source(release, spec.cuda))), None)
    return name if chosen and chosen[0] == source else f"{name}-{source}"


def _local_version(release: Release, build: Build | None, source: BuildSource) -> str:
    """What torch.__version__ says. conda's builds carry no local version; PyPI wheels do at run time, though not in their name."""
    if source != "wheels":
        return release.version
    return f"{release.version}+{build.tag if build else 'cpu'}"


def _torch_reason(spec: Spec, release: Release) -> str:
    return "asked for" if spec.torch == release.version else f"newest {spec.torch} release in the table"


def _nccl_reason(build: Build, source: BuildSource) -> str:
    if source == "conda-forge":
        return "a shared package on conda-forge"
    return "the exact version that torch's metadata pins" if build.nccl_is_package else "linked statically into the build; cannot be chosen"


def _channels(spec: Spec, source: BuildSource) -> tuple[str, ...]:
    """The pytorch channel must come first: channel order decides between CUDA and CPU (mamba-org/micromamba-docker#388)."""
    first = ("pytorch", "nvidia") if source == "pytorch" else ()
    asked = spec.channels or ("conda-forge",)
    return first + tuple(name for name in asked if name not in first)


def _virtual_packages(build: Build | None, glibc: str) -> tuple[tuple[str, str], ...]:
    machine = [("__glibc", glibc), ("__linux", KERNEL_LINUX), ("__unix", "0")]
    return tuple(sorted([*machine, *([("__cuda", build.cuda)] if build else [])]))


def _pins(spec: Spec, release: Release, build: Build | None, source: BuildSource, python: str, local: str) -> Iterable[Pin]:
    yield Pin(manager="conda", requirement=f"python={python}", reason=PYTHON_REASON, source=_python_source(release, build))
    if source == "wheels":
        yield Pin(manager="conda", requirement="pip", reason="conda-lock installs wheels with the prefix's own pip", source="conda-lock 4")
        yield from _wheel_pins(spec, release, build, local)
    else:
        assert build is not None or spec.cuda is None
        yield from _conda_pins(spec, release, build, source, python)
    manager: Manager = "pip" if source == "wheels" else "conda"
    for rule in compat.applying(release, build, source, python=python):
        if rule.requirement:
            yield Pin(manager=manager, requirement=rule.requirement, reason=rule.reason, source=rule.source)
    yield Pin(manager=manager, requirement="ipykernel", reason="Jupyter starts this environment through it", source="provision kernel")
    for extra in spec.conda:
        yield Pin(manager="conda", requirement=extra, reason="asked for", source="spec.yml")
    for extra in spec.pip:
        yield Pin(manager="pip", requirement=extra, reason="asked for", source="spec.yml")


def _wheel_pins(spec: Spec, release: Release, build: Build | None, local: str) -> Iterable[Pin]:
    suffix = "" if build and build.on_pypi else "+" + local.partition("+")[2]
    origin = build.source if build else "asked for with --cpu"
    reason = f"newest {spec.torch} release" if spec.torch != release.version else "asked for"
    flavor = f"CUDA {build.cuda}" if build else "CPU"
    yield Pin(
        manager="pip",
        requirement=f"torch=={release.version}{suffix}",
        reason=f"{reason}; {'the index default build' if not suffix else 'this build'} is {flavor} ({local})",
        source=origin,
    )
    if spec.companions and release.torchvision:
        requirement = f"torchvision=={release.torchvision}{suffix}"
        yield Pin(manager="pip", requirement=requirement, reason="the release made for this torch", source=release.torchvision_source)
    if spec.companions and release.companion_audio:
        requirement = f"torchaudio=={release.companion_audio}{suffix}"
        yield Pin(manager="pip", requirement=requirement, reason="the release made for this torch", source=release.torchaudio_source)
    if build and build.nccl and build.nccl_is_package:
        requirement = f"nvidia-nccl-cu{build.cuda.split('.')[0]}=={build.nccl}"
        reason = "the NCCL that this torch was built for; two versions in one process break collectives"
        yield Pin(manager="pip", requirement=requirement, reason=reason, source=build.nccl_source or origin)


def _conda_pins(spec: Spec, release: Release, build: Build | None, source: BuildSource, python: str) -> Iterable[Pin]:
    """Build strings are pinned: without one a solver may answer with a CPU build (conda/conda#14761)."""
    origin = build.source if build else release.sources[source]
    if source == "pytorch":
        string = build.tag.replace("py3.*", f"py{python}") if build else f"py{python}_cpu*"
        yield Pin(manager="conda", requirement=f"pytorch::pytorch={release.version}={string}", reason="build string pinned", source=origin)
        for selector in build.specs if build else ("cpuonly",):
            qualified = f"pytorch::{selector}" if selector.startswith(("pytorch-cuda", "cpuonly")) else selector
            yield Pin(manager="conda", requirement=qualified, reason="selects the CUDA variant", source=origin)
    else:
        string = f"cuda{build.cuda.replace('.', '')}*" if build else "cpu*"
        yield Pin(manager="conda", requirement=f"pytorch={release.version}={string}", reason="build string pinned", source=origin)
        for requirement in build.specs[1:] if build else ():
            yield Pin(manager="conda", requirement=requirement, reason="the CUDA of that build", source=origin)
        if build:
            pinned = f"nccl={spec.nccl}" + (".*" if spec.nccl and spec.nccl.count(".") < 2 else "") if spec.nccl else "nccl"
            yield Pin(manager="conda", requirement=pinned, reason="asked for" if spec.nccl else "chosen by the solver", source=origin)
    qualifier = "pytorch::" if source == "pytorch" else ""
    if spec.companions and release.torchvision:
        requirement = f"{qualifier}torchvision={release.torchvision}"
        yield Pin(manager="conda", requirement=requirement, reason="the release made for this torch", source=release.torchvision_source)
    if spec.companions and source == "pytorch" and release.companion_audio:
        requirement = f"{qualifier}torchaudio={release.companion_audio}"
        yield Pin(manager="conda", requirement=requirement, reason="the release made for this torch", source=release.torchaudio_source)
