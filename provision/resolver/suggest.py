"""The existing combinations nearest to a request that has no build.

Those come first that change the fewest choices (torch, CUDA, source, platform, Python),
each by as little as possible. The machine (GPU, driver, glibc) never changes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from provision import sources
from provision.catalog import EXACT, version_key
from provision.catalog.mismatches import Axis
from provision.core.dataclass import frozen
from provision.core.platforms import PLATFORM
from provision.core.spec_fields import Spec
from provision.resolver import constraints, python_versions
from provision.resolver.constraints import CHANGEABLE, MACHINE
from provision.sources.base import Candidate

# More than any number of minor versions.
MAJOR = 100


@frozen
class Neighbor:
    """An existing combination, as a request for it."""

    candidate: Candidate
    spec: Spec  # resolves to the candidate
    changed: tuple[Axis, ...]

    @property
    def options(self) -> str:
        """The options for the command line."""
        spec = self.spec
        arguments = ["--torch", spec.torch]
        arguments += ["--cuda", spec.cuda] if spec.cuda else ["--cpu"]
        if spec.source != sources.AUTO:
            arguments += ["--source", spec.source]
        arguments += ["--python", spec.python] if spec.python else []
        if "platform" in self.changed or spec.platforms != (PLATFORM,):
            for platform in spec.platforms:
                arguments += ["--platform", platform]
        return shlex.join(arguments)


def nearest(spec: Spec, limit: int, leads_to: Callable[[Spec], Candidate | None]) -> list[Neighbor]:
    """The nearest combinations. leads_to: resolves a spec; each neighbor's leads to its candidate.

    One for each choice, or smallest group of choices, that could be given up. Builds that only may run
    on the machine, or only by compiling PTX, are offered only if no build runs directly.
    """
    possible = list(filter(None, (_neighbor(row, spec) for row in sources.candidates())))
    certain = [
        neighbor
        for neighbor in possible
        if not any(constraints.violations(neighbor.candidate, neighbor.spec, MACHINE))
    ]
    neighbors: dict[tuple[Axis, ...], Neighbor] = {}
    for neighbor in sorted(certain or possible, key=lambda neighbor: _distance(neighbor, spec)):
        is_more = any(set(changed).issubset(neighbor.changed) for changed in neighbors)
        if not is_more and len(neighbors) < limit:
            leading = _with_leading_options(neighbor, leads_to)
            if leading is not None:
                neighbors[neighbor.changed] = leading
    return list(neighbors.values())


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


def _distance(neighbor: Neighbor, spec: Spec) -> tuple[object, ...]:
    candidate = neighbor.candidate
    release, cuda = candidate.release.version, candidate.cuda or "0"
    requested = constraints.releases_of(spec.torch) or re.findall(r"\d[\d.]*\d|\d", spec.torch)
    apart = _apart(release, requested[-1]) if "torch" in neighbor.changed and requested else 0
    return (
        len(neighbor.changed),
        apart,
        _apart(cuda, spec.cuda or "0") if "cuda" in neighbor.changed else 0,
        candidate.source.preference(candidate, neighbor.spec.platforms)[0],
        [-number for number in version_key(release)],
        [-number for number in version_key(cuda)],
    )


def _apart(version: str, other: str) -> int:
    """About how many minor versions lie between two versions."""
    (major, minor), (other_major, other_minor) = (
        (*version_key(text), 0)[:2] for text in (version, re.sub(r"[^\d.]+", "0", other))
    )
    return abs((major - other_major) * MAJOR + minor - other_minor)


def _neighbor(candidate: Candidate, spec: Spec) -> Neighbor | None:
    """The request for this candidate that gives up the least, or None if there is none."""
    build = candidate.build
    if build is None and (spec.gpu or spec.driver):
        return None
    changed: list[Axis] = []
    closer = spec
    for axis in CHANGEABLE:
        if not constraints.fits(candidate, closer, axis):
            closer = replace(closer, **_values(axis, candidate, closer))
            changed.append(axis)
    if "torch" not in changed and not EXACT.fullmatch(spec.torch):
        closer = replace(closer, torch=candidate.release.version)
    closer = replace(closer, cuda=candidate.cuda)
    if not closer.platforms or not constraints.fits(candidate, closer):
        return None
    return Neighbor(candidate=candidate, spec=closer, changed=tuple(changed))


def _values(axis: Axis, candidate: Candidate, spec: Spec) -> dict[str, Any]:
    """The fields of a spec with which a candidate fits on an axis, if it can."""
    if axis == "torch":
        return {"torch": candidate.release.version}
    if axis == "cuda":
        return {"cuda": candidate.cuda}
    if axis == "source":
        return {"source": candidate.source.name}
    if axis == "platform":
        platforms = candidate.common_platforms(spec.platforms) or candidate.platforms[:1]
        is_split = candidate.is_named_differently(platforms)
        return {"platforms": platforms[:1] if is_split else platforms}
    if axis == "python" and spec.python:
        pythons = python_versions.supported(candidate, spec.platforms, companions=spec.companions)
        return {"python": python_versions.nearest(pythons, spec.python) if pythons else None}
    return {axis: None}
