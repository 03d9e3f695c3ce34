"""Why an environment is what it is: every choice, pin, rule and warning of a resolution, and what was not chosen."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from provision.catalog import version_key
from provision.core.types import Choice, Machine, Pin, Platform, Spec
from provision.resolver import constraints, python_versions
from provision.resolver.candidate import SOURCES, Candidate, candidates_of
from provision.resolver.rationale import why_source
from provision.resolver.refusal import conflict
from provision.resolver.resolution import applying, on_its_machine, resolve
from provision.resolver.select import choose

NOT_ASKED = "not asked for"


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """A resolution for people who ask why."""

    name: str
    choices: tuple[Choice, ...]
    pins: tuple[Pin, ...]
    rules: tuple[Choice, ...]  # those that hold, whatever their consequence
    warnings: tuple[Choice, ...]
    not_chosen: tuple[Choice, ...]
    channels: tuple[str, ...]
    platforms: tuple[Platform, ...]
    virtual_packages: dict[str, str]


def explain(spec: Spec, machine: Machine | None = None) -> Explanation:
    """Resolve a spec and say why; refused as it would be by `resolve`."""
    machine = machine or Machine()
    found = resolve(spec, machine)
    candidate = choose(spec, machine)
    assert candidate is not None  # it was resolved
    there = on_its_machine(spec, found.spec, machine)
    held = applying(there, candidate, found.channels)
    return Explanation(
        name=found.spec.name,
        choices=found.choices,
        pins=found.pins,
        rules=tuple(
            Choice(
                what=rule.id,
                value=rule.requirement or rule.consequence,
                reason=rule.reason,
                source=rule.source,
            )
            for rule in held
        ),
        warnings=found.warnings,
        not_chosen=tuple(_not_chosen(spec, there, candidate)),
        channels=found.channels,
        platforms=found.platforms,
        virtual_packages=dict(found.virtual_packages),
    )


def _not_chosen(asked: Spec, settled: Spec, candidate: Candidate) -> Iterator[Choice]:
    """settled: with the machine that `auto` was for."""
    there = dataclasses.replace(asked, gpu=settled.gpu, driver=settled.driver)
    yield from _releases(there, candidate)
    yield from _cudas(there, candidate)
    yield from _sources(there, candidate)
    others = [
        minor
        for minor in python_versions.supported(
            candidate, settled.platforms, companions=settled.companions
        )
        if minor != settled.python
    ]
    if others:
        source = python_versions.source_of(candidate, settled.platforms[0]) or constraints.NO_SOURCE
        near = (
            "the default"
            if settled.python == python_versions.DEFAULT_PYTHON
            else f"the nearest to {python_versions.DEFAULT_PYTHON}"
        )
        why = f"{settled.python} {'was asked for' if asked.python else f'is {near}'}"
        yield Choice(
            what="python", value=", ".join(others), reason=f"would do as well; {why}", source=source
        )


def _releases(asked: Spec, candidate: Candidate) -> Iterator[Choice]:
    """Newer releases that were meant too, and why each would not do."""
    versions = [
        version
        for version in constraints.releases_of(asked.torch)
        if version_key(version) > version_key(candidate.release.version)
    ]
    for version in reversed(versions):
        yield _because("torch", version, conflict(dataclasses.replace(asked, torch=version)))


def _cudas(asked: Spec, candidate: Candidate) -> Iterator[Choice]:
    """The other CUDAs of the release, newest first, and why not."""
    builds = [
        other
        for other in candidates_of(candidate.release.version)
        if other.build and other.cuda != candidate.cuda
    ]
    for cuda, alike in itertools.groupby(builds, key=lambda other: other.cuda):
        having = ", ".join(other.source for other in alike)
        one = dataclasses.replace(asked, torch=candidate.release.version, cuda=cuda)
        if not constraints.passes(
            next(other for other in builds if other.cuda == cuda), asked, "cuda"
        ):
            yield Choice(
                what="cuda",
                value=f"{cuda} ({having})",
                reason=NOT_ASKED,
                source=candidate.release.sources[candidate.source],
            )
        elif facts := conflict(one):
            yield _because("cuda", f"{cuda} ({having})", facts)
        else:
            reason = (
                "older"
                if version_key(cuda or "0") < version_key(candidate.cuda or "0")
                else "whether it runs there is not known"
            )
            yield Choice(
                what="cuda",
                value=f"{cuda} ({having})",
                reason=reason,
                source=candidate.release.sources[candidate.source],
            )


def _sources(asked: Spec, candidate: Candidate) -> Iterator[Choice]:
    """The other sources: whether they have this build, and why not from there."""
    exact = dataclasses.replace(asked, torch=candidate.release.version, cuda=candidate.cuda)
    for source in SOURCES:
        if source == candidate.source:
            continue
        alike = (
            other
            for other in candidates_of(candidate.release.version)
            if (other.cuda, other.source) == (candidate.cuda, source)
        )
        having = next(alike, None)
        if having is None or not constraints.fits(
            having, dataclasses.replace(exact, source=source)
        ):
            yield _because("source", source, conflict(dataclasses.replace(exact, source=source)))
        else:
            why = NOT_ASKED if asked.source != "auto" else why_source(exact, candidate)
            yield Choice(
                what="source",
                value=source,
                reason=f"has this build too; {why}",
                source=having.origin,
            )


def _because(what: str, value: str, facts: list[str]) -> Choice:
    """The facts carry their sources."""
    return Choice(what=what, value=value, reason="; ".join(facts), source="")
