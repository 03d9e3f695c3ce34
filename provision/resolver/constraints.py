"""Whether a candidate is what a spec asks for, choice by choice. An objection names the fact that stands against it, and its source."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from provision import catalog
from provision.catalog import version_key
from provision.core.errors import NoSuchBuild
from provision.core.types import PLATFORM, Platform, Spec
from provision.resolver import python_versions
from provision.resolver.candidate import SPOKEN, Candidate

# What a request can give up to come to a build that exists, and what it cannot: the machine is as it is.
Axis = Literal[
    "torch", "cuda", "source", "platform", "python", "nccl", "cudnn", "gpu", "driver", "glibc"
]
CHANGEABLE: tuple[Axis, ...] = ("torch", "cuda", "source", "platform", "python", "nccl", "cudnn")
MACHINE: tuple[Axis, ...] = ("gpu", "driver", "glibc")


@dataclass(frozen=True, kw_only=True)
class Violation:
    """Why a candidate is not, or may not be, what is asked for."""

    axis: Axis
    fact: str
    source: str
    rules_out: bool = (
        True  # false: it may be what is asked for; no source says, or not without a drawback
    )
    unlikely: bool = False  # it may be, but only by what nobody says that the build has: asked for by name, never taken by itself

    def __str__(self) -> str:
        return f"{self.fact} ({self.source})" if self.source else self.fact


NO_SOURCE = "no source says"


def violations(candidate: Candidate, spec: Spec) -> Iterator[Violation]:
    """Everything that stands against a candidate, in the order in which a request is read."""
    for check in CHECKS.values():
        yield from check(candidate, spec)


def fits(candidate: Candidate, spec: Spec) -> bool:
    """Whether nothing that is known rules a candidate out."""
    return not any(found.rules_out for found in violations(candidate, spec))


def on_machine(candidate: Candidate, spec: Spec) -> Iterator[Violation]:
    """What stands against a candidate on the machine that a spec describes."""
    for axis in MACHINE:
        yield from CHECKS[axis](candidate, spec)


def passes(candidate: Candidate, spec: Spec, axis: Axis) -> bool:
    """Whether a candidate is what is asked for in one respect, or may be."""
    return not any(found.rules_out for found in CHECKS[axis](candidate, spec))


def starts(version: str | None, prefix: str) -> bool:
    """Whether a version is the one meant: 2.20 means 2.20 and every 2.20.x."""
    return version is not None and (version == prefix or version.startswith(prefix + "."))


def _torch(candidate: Candidate, spec: Spec) -> Iterator[Violation]:
    if candidate.release.version not in releases_of(spec.torch):
        yield Violation(
            axis="torch",
            fact=f"torch {candidate.release.version} is not {spec.torch}",
            source="asked for",
        )


@functools.cache
def releases_of(torch: str) -> tuple[str, ...]:
    """The releases that a spec's torch means, oldest first; none where the table has no such."""
    try:
        return tuple(release.version for release in catalog.matching_releases(torch))
    except NoSuchBuild:
        return ()


def _cuda(candidate: Candidate, spec: Spec) -> Iterator[Violation]:
    if not _is_cuda(candidate.cuda, spec.cuda):
        asked = f"CUDA {spec.cuda}" if spec.cuda else "CPU"
        yield Violation(
            axis="cuda", fact=f"{candidate} is not for {asked}", source=candidate.origin
        )


def _is_cuda(have: str | None, asked: str | None) -> bool:
    """auto means every CUDA, 12 every 12.x; no CUDA is asked for and had as None."""
    if have is None or asked is None:
        return have is asked
    return asked == "auto" or starts(have, asked)


def _source(candidate: Candidate, spec: Spec) -> Iterator[Violation]:
    if spec.source != "auto" and spec.source != candidate.source:
        yield Violation(
            axis="source", fact=f"{candidate} is not from {SPOKEN[spec.source]}", source="asked for"
        )


def _platform(candidate: Candidate, spec: Spec) -> Iterator[Violation]:
    for platform in spec.platforms:
        if platform not in candidate.platforms:
            known = ", ".join(candidate.platforms)
            yield Violation(
                axis="platform",
                fact=f"{candidate} exists for {known} and not for {platform}",
                source=candidate.origin,
            )
        elif not candidate.is_known_on(platform):
            fact = f"whether there is a build of {candidate} for {platform} is not known"
            yield Violation(axis="platform", fact=fact, source=NO_SOURCE, rules_out=False)
    if candidate.is_named_differently(spec.platforms):
        fact = (
            f"{candidate} is plain torch=={candidate.release.version} on one of {', '.join(spec.platforms)} and named by its build on another, "
            "which one environment.yml cannot say"
        )
        yield Violation(
            axis="platform",
            fact=fact,
            source=candidate.release.index_default[spec.platforms[0]].source,
        )


def _python(candidate: Candidate, spec: Spec) -> Iterator[Violation]:
    here = [platform for platform in spec.platforms if platform in candidate.platforms]
    if spec.python is None:
        if here and not python_versions.supported(candidate, here, companions=spec.companions):
            fact = f"{candidate} and its companions have no Python in common on {', '.join(here)}"
            yield Violation(axis="python", fact=fact, source=candidate.origin)
        return
    for platform in here:
        built = python_versions.built_for(candidate, platform)
        origin = python_versions.source_of(candidate, platform)
        if spec.python not in built:
            fact = f"torch {candidate.release.version} has no build for Python {spec.python} from {SPOKEN[candidate.source]} on {platform}, only for "
            yield Violation(
                axis="python",
                fact=fact + ", ".join(built),
                source=origin or candidate.release.python_source,
            )
        elif not python_versions.is_known(candidate, platform, spec.python):
            fact = f"whether there is a build of {candidate} for Python {spec.python} is not known"
            yield Violation(axis="python", fact=fact, source=NO_SOURCE, rules_out=False)
    fewer = python_versions.with_companions(candidate) if spec.companions else None
    if fewer is not None and spec.python not in fewer:
        fact = (
            f"torchvision {candidate.release.torchvision}, which goes with torch {candidate.release.version}, has no wheel for Python {spec.python}, "
            f"only for {', '.join(fewer)}; --no-companions leaves it out"
        )
        yield Violation(axis="python", fact=fact, source=candidate.release.torchvision_source)


def _nccl(candidate: Candidate, spec: Spec) -> Iterator[Violation]:
    """NCCL is a result of the build, except on conda-forge, where the solver may choose."""
    if spec.nccl is None:
        return
    if candidate.build is None:
        yield Violation(
            axis="nccl", fact=f"{candidate} is a CPU build without NCCL", source=candidate.origin
        )
    elif candidate.source == "conda-forge":
        yield from _nccl_on_conda_forge(candidate, spec, spec.nccl)
    elif not starts(candidate.build.nccl, spec.nccl):
        carried = candidate.build.nccl or "whose version is not known"
        fact = f"{candidate} carries NCCL {carried}, not {spec.nccl}, and it cannot be exchanged"
        yield Violation(axis="nccl", fact=fact, source=candidate.build.nccl_source or NO_SOURCE)


def _nccl_on_conda_forge(candidate: Candidate, spec: Spec, asked: str) -> Iterator[Violation]:
    assert candidate.build is not None
    table = catalog.nccl_on_conda_forge()
    meant = [one for version, one in table.items() if starts(version, asked)]
    newest = next(reversed(table))
    source = table[newest].source
    if not meant:
        has = "is not known to have" if version_key(asked) > version_key(newest) else "never had"
        for_cuda = dict.fromkeys(
            catalog.minor(version)
            for version, one in table.items()
            if one.runs_with(candidate.build.cuda)
        )
        fact = f"conda-forge {has} NCCL {asked}, and for CUDA {candidate.build.cuda} has {', '.join(for_cuda) or 'none'}"
        yield Violation(axis="nccl", fact=fact, source=source)
        return
    fitting = [one for one in meant if one.runs_with(candidate.build.cuda)]
    floor, floor_source = candidate.floor("nccl", spec.platforms)
    if not fitting:
        fact = f"conda-forge built NCCL {asked} for CUDA {', '.join(meant[-1].cuda)} only"
        yield Violation(axis="nccl", fact=fact, source=source)
    elif floor and all(version_key(one.version) < version_key(floor) for one in fitting):
        yield Violation(
            axis="nccl",
            fact=f"{candidate} needs NCCL {floor} or later, not {asked}",
            source=floor_source or NO_SOURCE,
        )
    elif floor is None:
        fact = f"which NCCL {candidate} takes is not known; the solver will tell"
        yield Violation(axis="nccl", fact=fact, source=NO_SOURCE, rules_out=False)


def _cudnn(candidate: Candidate, spec: Spec) -> Iterator[Violation]:
    if spec.cudnn is None:
        return
    if candidate.build is None:
        yield Violation(
            axis="cudnn", fact=f"{candidate} is a CPU build without cuDNN", source=candidate.origin
        )
    elif candidate.source == "conda-forge":
        yield from _cudnn_on_conda_forge(candidate, spec, spec.cudnn)
    elif (
        candidate.source == "pytorch"
        and candidate.build.cudnn
        and starts(spec.cudnn, candidate.build.cudnn)
    ):
        if spec.cudnn != candidate.build.cudnn:  # a build string holds three numbers of it
            fact = f"{candidate} carries cuDNN {candidate.build.cudnn}; whether that is {spec.cudnn} is not known"
            yield Violation(
                axis="cudnn",
                fact=fact,
                source=candidate.build.cudnn_source or NO_SOURCE,
                rules_out=False,
            )
    elif not starts(candidate.build.cudnn, spec.cudnn):
        carried = candidate.build.cudnn or "whose version is not known"
        fact = f"{candidate} carries cuDNN {carried}, not {spec.cudnn}, and it cannot be exchanged"
        yield Violation(axis="cudnn", fact=fact, source=candidate.build.cudnn_source or NO_SOURCE)


def _cudnn_on_conda_forge(candidate: Candidate, spec: Spec, asked: str) -> Iterator[Violation]:
    """The solver chooses, from the build's own cuDNN on and within its major version."""
    floor, source = candidate.floor("cudnn", spec.platforms)
    if floor is None:
        fact = f"which cuDNN {candidate} takes is not known; the solver will tell"
        yield Violation(axis="cudnn", fact=fact, source=NO_SOURCE, rules_out=False)
        return
    wanted, least = version_key(asked), version_key(floor)
    if wanted[0] != least[0] or wanted < least[: len(wanted)]:
        fact = f"{candidate} needs cuDNN {floor} or a later {least[0]}.x, not {asked}"
        yield Violation(axis="cudnn", fact=fact, source=source or NO_SOURCE)


def _gpu(candidate: Candidate, spec: Spec) -> Iterator[Violation]:
    """Every GPU named must find code for itself in the build."""
    for asked in spec.gpu:
        gpu = catalog.find_gpu(asked)
        if candidate.build is None:
            continue
        for platform in spec.platforms:
            if platform in candidate.platforms and (
                found := _reach(candidate, platform, gpu, spec)
            ):
                yield found


def _reach(
    candidate: Candidate, platform: Platform, gpu: catalog.Gpu, spec: Spec
) -> Violation | None:
    assert candidate.build is not None
    build = candidate.build.on(platform)
    there = f"{candidate}" + (f" on {platform}" if platform != PLATFORM else "")
    reach = catalog.runs_on_gpu(build, gpu, spec.driver)
    named = (
        f"{gpu.name} is {gpu.architecture}" if gpu.name != gpu.architecture else gpu.architecture
    )
    if reach == "yes":
        return None
    if reach == "ptx":
        fact = f"{there} holds no code for {gpu.name}, which compiles its PTX when a program starts"
        return Violation(
            axis="gpu", fact=fact, source=build.architectures_source or NO_SOURCE, rules_out=False
        )
    if reach == "unknown" and build.architectures is None and _is_beyond(build.cuda, gpu):
        toolkit = catalog.toolkits()[build.cuda]
        fact = (
            f"CUDA {build.cuda} compiles for nothing newer than {toolkit.capability_max} ({toolkit.capability_source}), and {named}; "
            f"whether {there} holds PTX for newer GPUs is not known"
        )
        return Violation(axis="gpu", fact=fact, source=gpu.source, rules_out=False, unlikely=True)
    if reach == "unknown":
        fact = f"for which GPUs {there} holds code is not known, so neither is whether it runs on {gpu.name}"
        return Violation(axis="gpu", fact=fact, source=NO_SOURCE, rules_out=False)
    if build.architectures is None:
        toolkit = catalog.toolkits()[build.cuda]
        fact = f"CUDA {build.cuda} compiles for {toolkit.capability_min} and newer ({toolkit.capability_source}), and {named}"
        fact += f", {compiled}" if (compiled := catalog.cuda_range_text(gpu)) else ""
    else:
        ptx = " and PTX that this driver cannot compile" if build.ptx and spec.driver else ""
        fact = f"{there} holds code for {', '.join(build.architectures)}{ptx} ({build.architectures_source}), and {named}"
    return Violation(axis="gpu", fact=fact, source=gpu.source)


def _is_beyond(cuda: str, gpu: catalog.Gpu) -> bool:
    """Whether a GPU is newer than all that a toolkit compiles for."""
    toolkit = catalog.toolkits().get(cuda)
    newest = toolkit.capability_max if toolkit else None
    return newest is not None and version_key(gpu.capability) > version_key(newest)


def _driver(candidate: Candidate, spec: Spec) -> Iterator[Violation]:
    if spec.driver is None or candidate.build is None:
        return
    answer = catalog.runs_on_driver(candidate.build.cuda, spec.driver)
    toolkit = catalog.toolkits().get(candidate.build.cuda)
    if toolkit is None:
        fact = f"which driver CUDA {candidate.build.cuda} needs is not known"
        yield Violation(axis="driver", fact=fact, source=NO_SOURCE, rules_out=False)
        return
    needs = f"CUDA {candidate.build.cuda} needs driver {toolkit.driver_floor} or later"
    if answer == "no":
        fact = f"{needs}, and the driver is {spec.driver}"
        yield Violation(axis="driver", fact=fact, source=toolkit.driver_source)
    elif answer == "unknown":
        fact = f"{needs}; whether {spec.driver} is that is not known"
        yield Violation(axis="driver", fact=fact, source=toolkit.driver_source, rules_out=False)
    elif others := ", ".join(
        platform for platform in spec.platforms if platform not in toolkit.driver_platforms
    ):
        fact = f"{needs} on {', '.join(toolkit.driver_platforms)}; which it needs on {others} is not known"
        yield Violation(axis="driver", fact=fact, source=toolkit.driver_source, rules_out=False)


def _glibc(candidate: Candidate, spec: Spec) -> Iterator[Violation]:
    if spec.glibc is None:
        return
    here = [platform for platform in spec.platforms if platform in candidate.platforms]
    needed = candidate.glibc(here)
    if needed is None:
        yield Violation(
            axis="glibc",
            fact=f"which glibc {candidate} needs is not known",
            source=NO_SOURCE,
            rules_out=False,
        )
    elif version_key(needed) > version_key(spec.glibc):
        build = candidate.on(here[-1])
        source = (build.glibc_source if build else None) or NO_SOURCE
        yield Violation(
            axis="glibc",
            fact=f"{candidate} needs glibc {needed} or later, and {spec.glibc} was asked for",
            source=source,
        )


CHECKS: dict[Axis, Callable[[Candidate, Spec], Iterator[Violation]]] = {
    "torch": _torch,
    "cuda": _cuda,
    "source": _source,
    "platform": _platform,
    "python": _python,
    "nccl": _nccl,
    "cudnn": _cudnn,
    "gpu": _gpu,
    "driver": _driver,
    "glibc": _glibc,
}
