"""A candidate and what goes with it -> the pins of environment.yml, each with its reason and source; the channels they come from."""

from __future__ import annotations

from collections.abc import Iterator

from provision.catalog import Rule, minor
from provision.core.types import Manager, Pin, Spec
from provision.resolver import python_versions
from provision.resolver.candidate import Candidate

# The same whether asked for or by default: the first build writes the default into spec.yml, and must render the same again.
PYTHON_REASON = "one minor version per environment, and this build supports it"
COMPANION = "the release made for this torch"
COMPANION_LINE = (
    "the releases made for this torch; conda-forge has not every one, and builds each for one torch"
)
JUPYTER, JUPYTER_SOURCE = "Jupyter starts this environment through it", "provision kernel"
CHECKPOINTS = "inside.checkpoint loads, and saves again, several times as fast by its XXH128, which came with 2.0"
CHECKPOINTS_SOURCE = "provision inside.checkpoint; ifduyue/python-xxhash@v2.0.0:CHANGELOG.rst"
PIP = Pin(
    manager="conda",
    requirement="pip",
    reason="conda-lock installs wheels with the prefix's own pip",
    source="conda-lock 4",
)
RDMA = "several hosts over InfiniBand or RoCE: NCCL loads libibverbs when it starts, and without it falls back to TCP"
RDMA_SOURCE = "NVIDIA/nccl@d97a32fac84f69cbd022ffdc57d5687c760742c7:src/misc/ibvsymbols.cc"


def manager_of(candidate: Candidate) -> Manager:
    """Who installs what goes with torch: pip beside wheels, conda beside conda's builds."""
    return "pip" if candidate.source == "wheels" else "conda"


def pins(spec: Spec, candidate: Candidate, rules: tuple[Rule, ...]) -> Iterator[Pin]:
    """Every requirement, in the order in which it is rendered. spec is settled: its Python is chosen."""
    assert spec.python is not None
    manager = manager_of(candidate)
    origin = python_versions.source_of(candidate, spec.platforms[0]) or "no source says"
    yield Pin(
        manager="conda", requirement=f"python={spec.python}", reason=PYTHON_REASON, source=origin
    )
    if candidate.source == "wheels":
        yield PIP
        yield from _wheels(spec, candidate)
    elif candidate.source == "pytorch":
        yield from _pytorch(spec, candidate)
    else:
        yield from _conda_forge(spec, candidate)
    if spec.pip and candidate.source != "wheels":
        yield PIP
    for rule in rules:
        if rule.consequence == "pin" and rule.requirement:
            yield Pin(
                manager=manager,
                requirement=rule.requirement,
                reason=rule.reason,
                source=rule.source,
            )
    if spec.infiniband:
        yield Pin(manager="conda", requirement="rdma-core", reason=RDMA, source=RDMA_SOURCE)
    if spec.jupyter:
        yield Pin(manager=manager, requirement="ipykernel", reason=JUPYTER, source=JUPYTER_SOURCE)
    if spec.fast_checkpoints:
        package = "xxhash" if manager == "pip" else "python-xxhash"
        yield Pin(
            manager=manager,
            requirement=f"{package}>=2",
            reason=CHECKPOINTS,
            source=CHECKPOINTS_SOURCE,
        )
    for extra in spec.conda:
        yield Pin(manager="conda", requirement=extra, reason="asked for", source="spec.yml")
    for extra in spec.pip:
        yield Pin(manager="pip", requirement=extra, reason="asked for", source="spec.yml")


def channels(spec: Spec, candidate: Candidate) -> tuple[str, ...]:
    """The pytorch channel must come first: channel order decides between CUDA and CPU (mamba-org/micromamba-docker#388). What lies in
    the nvidia channel says the build; conda-forge is what is asked for where nothing is."""
    first: tuple[str, ...] = ()
    if candidate.source == "pytorch":
        first = (
            tuple(name for name in candidate.build.channels if name != "conda-forge")
            if candidate.build
            else ("pytorch",)
        )
    asked = spec.channels or ("conda-forge",)
    return first + tuple(name for name in asked if name not in first)


def local_version(candidate: Candidate) -> str:
    """What torch.__version__ says. conda's builds carry no local version; wheels do at run time, the index's in no file name."""
    if candidate.source != "wheels":
        return candidate.release.version
    return f"{candidate.release.version}+{candidate.build.tag if candidate.build else 'cpu'}"


def torch_reason(spec: Spec, candidate: Candidate) -> str:
    return (
        "asked for" if spec.torch == candidate.release.version else f"newest {spec.torch} release"
    )


def _wheels(spec: Spec, candidate: Candidate) -> Iterator[Pin]:
    """PyTorch's wheels are named by their build, except the one that a package index serves by default."""
    release, build, local = candidate.release, candidate.build, local_version(candidate)
    apart = candidate.needs_torch_index(spec.platforms)
    suffix = "+" + local.partition("+")[2] if apart else ""
    origin = build.source if build else "asked for with --cpu"
    reason = f"{torch_reason(spec, candidate)}; {'this build' if apart else 'the index default build'} is {candidate.flavor} ({local})"
    yield Pin(
        manager="pip", requirement=f"torch=={release.version}{suffix}", reason=reason, source=origin
    )
    if spec.companions and release.torchvision:
        requirement = f"torchvision=={release.torchvision}{suffix}"
        yield Pin(
            manager="pip",
            requirement=requirement,
            reason=COMPANION,
            source=release.torchvision_source,
        )
    if spec.companions and release.companion_audio:
        requirement = f"torchaudio=={release.companion_audio}{suffix}"
        yield Pin(
            manager="pip",
            requirement=requirement,
            reason=COMPANION,
            source=release.torchaudio_source,
        )
    if build and build.nccl and build.nccl_is_package:
        requirement = f"nvidia-nccl-cu{build.cuda.split('.')[0]}=={build.nccl}"
        reason = (
            "the NCCL that this torch was built for; two versions in one process break collectives"
        )
        yield Pin(
            manager="pip",
            requirement=requirement,
            reason=reason,
            source=build.nccl_source or origin,
        )


def _pytorch(spec: Spec, candidate: Candidate) -> Iterator[Pin]:
    """Build strings are pinned: without one a solver may answer with a CPU build (conda/conda#14761)."""
    release, build, origin = candidate.release, candidate.build, candidate.origin
    string = build.tag.replace("py3.*", f"py{spec.python}") if build else f"py{spec.python}_cpu*"
    yield Pin(
        manager="conda",
        requirement=f"pytorch::pytorch={release.version}={string}",
        reason="build string pinned",
        source=origin,
    )
    for selector in build.specs if build else ("cpuonly",):
        qualified = (
            f"pytorch::{selector}" if selector.startswith(("pytorch-cuda", "cpuonly")) else selector
        )
        reason = "selects the CUDA variant" if build else "selects the CPU variant"
        yield Pin(manager="conda", requirement=qualified, reason=reason, source=origin)
    if spec.companions and release.torchvision:
        requirement = f"pytorch::torchvision={release.torchvision}"
        yield Pin(
            manager="conda",
            requirement=requirement,
            reason=COMPANION,
            source=release.torchvision_source,
        )
    if spec.companions and release.companion_audio:
        requirement = f"pytorch::torchaudio={release.companion_audio}"
        yield Pin(
            manager="conda",
            requirement=requirement,
            reason=COMPANION,
            source=release.torchaudio_source,
        )


def _conda_forge(spec: Spec, candidate: Candidate) -> Iterator[Pin]:
    release, build, origin = candidate.release, candidate.build, candidate.origin
    torch = build.specs[0] if build else f"pytorch={release.version}=cpu*"
    yield Pin(manager="conda", requirement=torch, reason="build string pinned", source=origin)
    for requirement in build.specs[1:] if build else ():
        yield Pin(
            manager="conda", requirement=requirement, reason="the CUDA of that build", source=origin
        )
    if build:
        nccl = _within("nccl", spec.nccl, parts=3)
        yield Pin(
            manager="conda",
            requirement=nccl,
            reason="asked for" if spec.nccl else "chosen by the solver",
            source=origin,
        )
    if build and spec.cudnn:
        yield Pin(
            manager="conda",
            requirement=_within("cudnn", spec.cudnn, parts=4),
            reason="asked for",
            source=origin,
        )
    if spec.companions and release.torchvision:
        requirement = f"torchvision={minor(release.torchvision)}.*"
        yield Pin(
            manager="conda",
            requirement=requirement,
            reason=COMPANION_LINE,
            source=release.torchvision_source,
        )


def _within(package: str, version: str | None, *, parts: int) -> str:
    """A package of a version asked for by its first numbers, in conda's words."""
    if version is None:
        return package
    return f"{package}={version}" + (".*" if version.count(".") < parts - 1 else "")
