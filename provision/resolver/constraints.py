"""Whether a candidate meets a request, one constraint for each choice of the request.

The only module that decides whether a build fits: `resolve`, `provision matrix` and `suggest` all
use it. A violation names the fact that contradicts the request, and that fact's source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from provision import catalog, sources
from provision.catalog import version_key
from provision.catalog.mismatches import (
    NO_SOURCE,
    Axis,
    Verdict,
    Violation,
    code_mismatches,
    driver_mismatches,
)
from provision.core.errors import NoSuchBuild
from provision.core.platforms import PLATFORM, Platform
from provision.core.spec_fields import Spec
from provision.resolver import python_versions
from provision.sources.base import REQUESTED, Candidate, means

# What a request can give up to reach an existing build; the machine cannot change.
CHANGEABLE: tuple[Axis, ...] = ("torch", "cuda", "source", "platform", "python")
MACHINE: tuple[Axis, ...] = ("gpu", "driver", "glibc")


def violations(candidate: Candidate, spec: Spec, axes: Iterable[Axis] = ()) -> Iterator[Violation]:
    """What in a candidate violates the request on these axes; on all, in their order, if none."""
    for axis in axes or CONSTRAINTS:
        yield from CONSTRAINTS[axis](candidate, spec)


def fits(candidate: Candidate, spec: Spec, *axes: Axis) -> bool:
    """Whether nothing rules a candidate out on these axes; on any, if none."""
    return not any(violation.rules_out for violation in violations(candidate, spec, axes))


def verdict(candidate: Candidate, spec: Spec, axis: Axis) -> Verdict:
    """Whether a candidate is known to fit on one axis.

    A table also lists builds about which a fact is not known, so that alone is no "no".
    """
    verdicts = {violation.verdict for violation in violations(candidate, spec, [axis])}
    worst_first: tuple[Verdict, ...] = ("no", "unknown", "ptx")
    return next((verdict for verdict in worst_first if verdict in verdicts), "fits")


def _torch(candidate: Candidate, spec: Spec) -> Iterator[Violation]:
    version = candidate.release.version
    if version not in releases_of(spec.torch):
        yield Violation(axis="torch", fact=f"torch {version} is not {spec.torch}", source=REQUESTED)


@catalog.cached
def releases_of(torch: str) -> tuple[str, ...]:
    """The releases that a spec's torch selects, oldest first; empty if the catalog has none."""
    try:
        return tuple(release.version for release in catalog.matching_releases(torch))
    except NoSuchBuild:
        return ()


def _cuda(candidate: Candidate, spec: Spec) -> Iterator[Violation]:
    """auto means every CUDA, 12 means every 12.x, None means a CPU build."""
    if candidate.cuda is None or spec.cuda is None:
        is_meant = candidate.cuda is spec.cuda
    else:
        is_meant = spec.cuda == "auto" or means(spec.cuda, candidate.cuda)
    if not is_meant:
        flavor = f"CUDA {spec.cuda}" if spec.cuda else "CPU"
        yield Violation(
            axis="cuda", fact=f"{candidate} is not for {flavor}", source=candidate.origin
        )


def _source(candidate: Candidate, spec: Spec) -> Iterator[Violation]:
    if spec.source not in (sources.AUTO, candidate.source.name):
        title = sources.by_name(spec.source).title
        yield Violation(axis="source", fact=f"{candidate} is not from {title}", source=REQUESTED)


def _platform(candidate: Candidate, spec: Spec) -> Iterator[Violation]:
    for platform in spec.platforms:
        if platform not in candidate.platforms:
            existing = ", ".join(candidate.platforms)
            yield Violation(
                axis="platform",
                fact=f"{candidate} exists for {existing} and not for {platform}",
                source=candidate.origin,
            )
        elif candidate.build is None and not candidate.source.has_cpu_build(
            candidate.release, platform
        ):
            yield Violation(
                axis="platform",
                fact=f"whether there is a build of {candidate} for {platform} is not known",
                rules_out=False,
            )
    if candidate.is_named_differently(spec.platforms):
        yield Violation(
            axis="platform",
            fact=f"{candidate} is plain torch=={candidate.release.version} on one of "
            f"{', '.join(spec.platforms)} and named by its build on another, "
            "which one environment.yml cannot express",
            source=candidate.release.index_default[spec.platforms[0]].source,
        )


def _python(candidate: Candidate, spec: Spec) -> Iterator[Violation]:
    platforms = candidate.common_platforms(spec.platforms)
    if spec.python is None:
        if platforms and not python_versions.supported(
            candidate, platforms, companions=spec.companions
        ):
            yield Violation(
                axis="python",
                fact=f"{candidate} and its companions have no Python in common on "
                f"{', '.join(platforms)}",
                source=candidate.origin,
            )
        return
    for platform in platforms:
        violation = _python_violation(candidate, platform, spec.python)
        if violation:
            yield violation
    fewer = candidate.source.companion_pythons(candidate.release) if spec.companions else None
    if fewer is not None and spec.python not in fewer:
        torchvision = candidate.release.companions[0]
        yield Violation(
            axis="python",
            fact=f"torchvision {torchvision.version}, which goes with torch "
            f"{candidate.release.version}, has "
            f"no wheel for Python {spec.python}, only for {', '.join(fewer)}; --no-companions "
            "leaves it out",
            source=torchvision.source,
        )


def _python_violation(candidate: Candidate, platform: Platform, python: str) -> Violation | None:
    if python_versions.is_known(candidate, platform, python):
        return None
    pythons = python_versions.built_for(candidate, platform)
    if python in pythons:
        return Violation(
            axis="python",
            fact=f"whether there is a build of {candidate} for Python {python} is not known",
            rules_out=False,
        )
    release, build = candidate.release, candidate.build_for(platform)
    source = python_versions.source_of(candidate, platform) or release.python_source
    return Violation(
        axis="python",
        fact=f"torch {release.version} has no build for Python {python} from "
        f"{candidate.source.title} on {platform}, only for {', '.join(pythons)}",
        source=source,
        is_certain=build is None or build.python is not None,
    )


def _gpu(candidate: Candidate, spec: Spec) -> Iterator[Violation]:
    """The build must hold code for every GPU of the request."""
    if candidate.build is None:
        return
    for name in spec.gpu:
        gpu = catalog.find_gpu(name)
        if gpu.platform and gpu.platform not in spec.platforms:
            yield Violation(
                axis="gpu",
                fact=f"{gpu.name} is on one module with an Arm CPU, which needs {gpu.platform}",
                source=gpu.platform_source or NO_SOURCE,
            )
        for platform in candidate.common_platforms(spec.platforms):
            if gpu.platform not in (None, platform):
                continue
            subject = str(candidate) if platform == PLATFORM else f"{candidate} on {platform}"
            build = candidate.build.for_platform(platform)
            yield from code_mismatches(build, gpu, spec.driver, subject)


def _driver(candidate: Candidate, spec: Spec) -> Iterator[Violation]:
    """NVIDIA's tables name drivers for x86_64 only: on other platforms an old driver rules a build
    out, but not for certain."""
    if spec.driver is None or candidate.build is None:
        return
    mismatches = [*driver_mismatches(candidate.build.cuda, spec.driver, PLATFORM)]
    for platform in spec.platforms:
        if platform != PLATFORM and not mismatches:
            mismatches += driver_mismatches(candidate.build.cuda, spec.driver, platform)
    for mismatch in mismatches:
        yield replace(mismatch, is_certain=PLATFORM in spec.platforms)


def _glibc(candidate: Candidate, spec: Spec) -> Iterator[Violation]:
    if spec.glibc is None:
        return
    needed, source = candidate.glibc(candidate.common_platforms(spec.platforms))
    if needed is None:
        yield Violation(
            axis="glibc",
            fact=f"which glibc {candidate} needs is not known",
            rules_out=False,
        )
    elif version_key(needed) > version_key(spec.glibc):
        yield Violation(
            axis="glibc",
            fact=f"{candidate} needs glibc {needed} or later, and {spec.glibc} was requested",
            source=source or NO_SOURCE,
        )


CONSTRAINTS: dict[Axis, Callable[[Candidate, Spec], Iterator[Violation]]] = {
    "torch": _torch,
    "cuda": _cuda,
    "source": _source,
    "platform": _platform,
    "python": _python,
    "gpu": _gpu,
    "driver": _driver,
    "glibc": _glibc,
}
