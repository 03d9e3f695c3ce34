"""Explains an environment: every choice, pin, rule and warning of a resolution, and the
alternatives that were not chosen."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from provision import sources
from provision.catalog import version_key
from provision.core.dataclass import dataclass
from provision.core.platforms import Platform
from provision.core.spec_fields import Spec
from provision.core.types import Choice, HostGpus, Pin
from provision.resolver import constraints, python_versions
from provision.resolver.rationale import source_reason
from provision.resolver.refusal import contradictions, described_facts
from provision.resolver.resolution import decide
from provision.sources.base import NO_SOURCE, Candidate, Violation

NOT_REQUESTED = "not requested"


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """A resolution with its reasons and the alternatives."""

    name: str
    choices: tuple[Choice, ...]
    pins: tuple[Pin, ...]
    rules: tuple[Choice, ...]  # all that hold, with any consequence
    warnings: tuple[Choice, ...]
    not_chosen: tuple[Choice, ...]
    channels: tuple[str, ...]
    platforms: tuple[Platform, ...]
    virtual_packages: dict[str, str]


def explain(spec: Spec, machine: HostGpus | None = None) -> Explanation:
    """Resolve a spec and explain the result. Raises the errors of `resolve`."""
    decision = decide(spec, machine or HostGpus())
    resolution = decision.resolution
    rules = []
    for rule in decision.rules:
        rules.append(
            Choice(
                what=rule.id,
                value=rule.requirement or rule.consequence,
                reason=rule.reason,
                source=rule.source,
            )
        )
    return Explanation(
        name=resolution.spec.name,
        choices=resolution.choices,
        pins=resolution.pins,
        rules=tuple(rules),
        warnings=resolution.warnings,
        not_chosen=(
            *_newer_releases(decision.described, decision.candidate),
            *_other_cudas(decision.described, decision.candidate),
            *_other_sources(decision.described, decision.candidate),
            *_other_pythons(decision.described, resolution.spec, decision.candidate),
        ),
        channels=resolution.channels,
        platforms=resolution.platforms,
        virtual_packages=dict(resolution.virtual_packages),
    )


def _newer_releases(described: Spec, candidate: Candidate) -> Iterator[Choice]:
    """Newer releases that the request also selects, and why each does not fit."""
    chosen = version_key(candidate.release.version)
    for version in reversed(constraints.releases_of(described.torch)):
        if version_key(version) > chosen:
            yield _contradicted("torch", version, contradictions(replace(described, torch=version)))


def _other_cudas(described: Spec, candidate: Candidate) -> Iterator[Choice]:
    """The other CUDA versions of the release, newest first, and why each was not chosen."""
    rivals = [
        rival
        for rival in sources.candidates_of(candidate.release.version)
        if rival.build and rival.cuda != candidate.cuda
    ]
    for cuda, group in itertools.groupby(rivals, key=lambda rival: rival.cuda):
        same_cuda = list(group)
        value = f"{cuda} ({', '.join(rival.source.name for rival in same_cuda)})"
        exact = replace(described, torch=candidate.release.version, cuda=cuda)
        if not constraints.fits(same_cuda[0], described, "cuda"):
            reason = NOT_REQUESTED
        elif violations := contradictions(exact):
            yield _contradicted("cuda", value, violations)
            continue
        elif version_key(cuda or "0") < version_key(candidate.cuda or "0"):
            reason = "older"
        else:
            reason = "whether it runs on that machine is not known"
        origin = candidate.source.origin(candidate.release)
        yield Choice(what="cuda", value=value, reason=reason, source=origin)


def _other_sources(described: Spec, candidate: Candidate) -> Iterator[Choice]:
    """The other sources: whether they have this build, and why they were not chosen."""
    exact = replace(described, torch=candidate.release.version, cuda=candidate.cuda)
    same_builds = {
        other.source.name: other
        for other in sources.candidates_of(candidate.release.version)
        if other.cuda == candidate.cuda
    }
    for source in sources.REGISTRY:
        if source is candidate.source:
            continue
        from_source = replace(exact, source=source.name)
        other = same_builds.get(source.name)
        if other is None or not constraints.fits(other, from_source):
            yield _contradicted("source", source.name, contradictions(from_source))
            continue
        reason = NOT_REQUESTED
        if described.source == sources.AUTO:
            reason = source_reason(exact, candidate)
        yield Choice(
            what="source",
            value=source.name,
            reason=f"has this build too; {reason}",
            source=other.origin,
        )


def _other_pythons(described: Spec, settled: Spec, candidate: Candidate) -> Iterator[Choice]:
    supported = python_versions.supported(
        candidate, settled.platforms, companions=settled.companions
    )
    other_pythons = [python for python in supported if python != settled.python]
    if not other_pythons:
        return
    if described.python:
        reason = f"{settled.python} was requested"
    elif settled.python == python_versions.DEFAULT_PYTHON:
        reason = f"{settled.python} is the default"
    else:
        reason = f"{settled.python} is the nearest to {python_versions.DEFAULT_PYTHON}"
    yield Choice(
        what="python",
        value=", ".join(other_pythons),
        reason=f"would do as well; {reason}",
        source=python_versions.source_of(candidate, settled.platforms[0]) or NO_SOURCE,
    )


def _contradicted(what: str, value: str, violations: list[Violation]) -> Choice:
    """The facts carry their own sources."""
    return Choice(what=what, value=value, reason=described_facts(violations), source="")
