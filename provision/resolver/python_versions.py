"""Python versions: which a build supports, how well that is known, and which one is chosen if the
request names none."""

from __future__ import annotations

from collections.abc import Sequence

from provision.catalog import version_key
from provision.core.platforms import Platform
from provision.core.spec_fields import Spec
from provision.sources.base import Candidate

# Every release from 1.13 on supports it, from the wheels and from both channels, and no newer
# Python has that.
DEFAULT_PYTHON = "3.11"


def built_for(candidate: Candidate, platform: Platform) -> tuple[str, ...]:
    """The Pythons that a build was made for; if no source says, those of the release's wheels."""
    if candidate.build is None:
        return candidate.source.cpu_pythons(candidate.release, platform)
    build = candidate.build.for_platform(platform)
    return build.python if build.python is not None else candidate.release.python


def source_of(candidate: Candidate, platform: Platform) -> str | None:
    """The source of a build's Pythons; None if they are not known."""
    if candidate.build is not None:
        return candidate.build.for_platform(platform).python_source
    for build in candidate.source.builds(candidate.release):
        if platform in build.platforms:
            return build.for_platform(platform).python_source
    return candidate.release.index_default[platform].source


def is_known(candidate: Candidate, platform: Platform, python: str) -> bool:
    """Whether a source says that there is a build for this Python; a free-threaded one is written
    3.13t."""
    if candidate.build is None:
        return python in built_for(candidate, platform)
    build = candidate.build.for_platform(platform)
    pythons = build.python_seen if build.python is None else build.python
    return python in pythons or python in build.free_threaded


def supported(
    candidate: Candidate, platforms: Sequence[Platform], *, companions: bool
) -> tuple[str, ...]:
    """The Pythons that a build, and its companions if they are installed, have on all of the
    platforms."""
    common = candidate.common_platforms(platforms)
    if not common:
        return ()
    pythons, *others = (built_for(candidate, platform) for platform in common)
    fewer = candidate.source.companion_pythons(candidate.release) if companions else None
    if fewer is not None:
        others.append(fewer)
    return tuple(python for python in pythons if all(python in other for other in others))


def chosen(candidate: Candidate, spec: Spec) -> str:
    """The Python of the request, else the one nearest to the default.

    A Python that a source names is preferred to one that only may exist.
    """
    if spec.python is not None:
        return spec.python
    possible = supported(candidate, spec.platforms, companions=spec.companions)
    certain = [
        python
        for python in possible
        if all(is_known(candidate, platform, python) for platform in spec.platforms)
    ]
    return nearest(certain or possible, DEFAULT_PYTHON)


def nearest(pythons: Sequence[str], target: str) -> str:
    """The minor version fewest steps away; the older of two."""
    return min(pythons, key=lambda python: steps(python, target))


def steps(python: str, other: str) -> int:
    """The number of minor versions between two Pythons."""
    return abs(version_key(python)[1] - version_key(other)[1])
