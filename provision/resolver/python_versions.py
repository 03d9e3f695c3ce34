"""Python versions: which a build can live with, which is taken where nothing is asked for, and how well that is known."""

from __future__ import annotations

from collections.abc import Sequence

from provision.catalog import version_key
from provision.core.types import Platform, Spec
from provision.resolver.candidate import Candidate

# Supported by every release from 1.13 on, and the newest of which that is true of wheels and both channels.
DEFAULT_PYTHON = "3.11"


def built_for(candidate: Candidate, platform: Platform) -> tuple[str, ...]:
    """Pythons that a build was made for; where no source says, those of the release's wheels."""
    if candidate.build is None:
        return _cpu(candidate, platform)
    build = candidate.build.on(platform)
    return build.python if build.python is not None else candidate.release.python


def _cpu(candidate: Candidate, platform: Platform) -> tuple[str, ...]:
    if candidate.source == "wheels":
        return candidate.release.index_default[platform].python
    known = {
        minor
        for build in candidate.release.builds(candidate.source)
        if platform in build.platforms
        for minor in build.on(platform).python or ()
    }
    return tuple(sorted(known, key=version_key)) or candidate.release.python


def source_of(candidate: Candidate, platform: Platform) -> str | None:
    """Where the Pythons of a build are known from; None where they are not."""
    if candidate.build is None:
        known = next(
            (
                build
                for build in candidate.release.builds(candidate.source)
                if platform in build.platforms
            ),
            None,
        )
        return (
            known.on(platform).python_source
            if known
            else candidate.release.index_default[platform].source
        )
    return candidate.build.on(platform).python_source


def is_known(candidate: Candidate, platform: Platform, python: str) -> bool:
    """Whether a source says that there is a build for this Python."""
    if candidate.build is None:
        return True
    build = candidate.build.on(platform)
    return build.python is not None or python in build.python_seen


def supported(
    candidate: Candidate, platforms: Sequence[Platform], *, companions: bool
) -> tuple[str, ...]:
    """Pythons that a build, and its companions if they come along, have on all of the platforms."""
    here = [platform for platform in platforms if platform in candidate.platforms]
    common = (
        [
            minor
            for minor in built_for(candidate, here[0])
            if all(minor in built_for(candidate, other) for other in here[1:])
        ]
        if here
        else []
    )
    fewer = with_companions(candidate) if companions else None
    return tuple(minor for minor in common if fewer is None or minor in fewer)


def with_companions(candidate: Candidate) -> tuple[str, ...] | None:
    """Pythons that torchvision has wheels for, where those are fewer than torch has."""
    return candidate.release.companions_python if candidate.source == "wheels" else None


def chosen(candidate: Candidate, spec: Spec) -> str:
    """The Python asked for, else the one nearest to the default; one that a source names is taken before one that may exist."""
    if spec.python is not None:
        return spec.python
    choices = supported(candidate, spec.platforms, companions=spec.companions)
    named = [
        minor
        for minor in choices
        if all(is_known(candidate, platform, minor) for platform in spec.platforms)
    ]
    return nearest(named or choices, DEFAULT_PYTHON)


def nearest(choices: Sequence[str], wanted: str) -> str:
    """The minor version fewest steps away; the older of two."""
    return min(choices, key=lambda minor: steps(minor, wanted))


def steps(one: str, other: str) -> int:
    """How many minor versions lie between."""
    return abs(version_key(one)[1] - version_key(other)[1])
