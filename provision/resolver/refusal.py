"""Why a request has no build: the facts that contradict it, each with its source, and what exists
instead."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from provision import catalog, sources
from provision.catalog import version_key
from provision.core.errors import NoSuchBuild
from provision.core.platforms import PLATFORM
from provision.core.spec_fields import Spec
from provision.resolver import constraints
from provision.resolver.suggest import Neighbor, nearest
from provision.sources.base import Candidate, Source, Violation

NEAREST = 3
FACTS = 3  # of a kind: a range has many builds, each with its own fact
# What may still contradict a request for which release, CUDA and source exist.
REMAINING_AXES = constraints.CHANGEABLE[3:] + constraints.MACHINE


def no_such_build(spec: Spec, leads_to: Callable[[Spec], Candidate | None]) -> NoSuchBuild:
    """The refusal of a spec that no candidate satisfies. leads_to: what a spec resolves to, used to
    try every offer."""
    offers = [_offer(neighbor) for neighbor in nearest(spec, NEAREST, leads_to)]
    if offers:
        lines = ["Nearest:", *_indented(offers)]
    else:
        with_packages = " together with those packages" if spec.conda or spec.pip else ""
        lines = [
            f"Nothing in the table comes near it: no build runs on that machine{with_packages}."
        ]
    violations = contradictions(spec)
    hint = f"facts of {catalog.edition().date}"
    if any(violation.source for violation in violations):
        hint += "; -v shows the sources"
    lines += [f"Why ({hint}):", *_indented(_facts(violations, with_sources=False))]
    return NoSuchBuild(
        f"There is no build for {described_request(spec)}.",
        advice="\n".join(lines),
        details="\n".join(dict.fromkeys(map(str, violations))),
    )


def _offer(neighbor: Neighbor) -> str:
    """The options to use instead, those to leave out, and the source of the build if the options do
    not name it."""
    remarks = []
    if neighbor.spec.source == sources.AUTO:
        remarks.append(neighbor.candidate.source.name)
    remarks += [f"without --{axis}" for axis in neighbor.dropped]
    return f"`{neighbor.options}`" + (f" ({', '.join(remarks)})" if remarks else "")


def described_request(spec: Spec) -> str:
    """A spec as part of a sentence."""
    parts = [f"torch {spec.torch}"]
    if spec.cuda is None:
        parts.append("CPU")
    for title, value in (
        ("CUDA", spec.cuda),
        ("Python", spec.python),
        ("NCCL", spec.nccl),
        ("cuDNN", spec.cudnn),
        ("driver", spec.driver),
        ("glibc", spec.glibc),
    ):
        if value:
            parts.append(f"{title} {value}")
    if spec.source != sources.AUTO:
        parts.append(f"source {spec.source}")
    parts += spec.gpu
    if spec.platforms != (PLATFORM,):
        parts += spec.platforms
    return ", ".join(parts)


def contradictions(spec: Spec) -> list[Violation]:
    """The facts that contradict a request."""
    of_release: list[Candidate] = []
    for version in reversed(constraints.releases_of(spec.torch)):
        of_release.extend(sources.candidates_of(version))
    if not of_release:
        releases = list(catalog.releases())
        cuda = "X.Y" if spec.cuda == "auto" else spec.cuda
        fact = f"torch {spec.torch} is not in the table of known releases "
        fact += f"({releases[0]} to {releases[-1]}). {catalog.since_facts(spec.torch, cuda)}"
        return [Violation(axis="torch", fact=fact, source="")]
    of_cuda = [candidate for candidate in of_release if constraints.fits(candidate, spec, "cuda")]
    if not of_cuda:
        return [_available_cudas(spec, of_release, source) for source in sources.REGISTRY]
    of_source = [candidate for candidate in of_cuda if constraints.fits(candidate, spec, "source")]
    if of_source:
        return _violations(spec, of_source)
    of_sources = sources.REGISTRY
    if spec.source != sources.AUTO:
        of_sources = (sources.by_name(spec.source),)
    facts = [_available_cudas(spec, of_release, source) for source in of_sources]
    for candidate in of_cuda:
        if candidate.build and candidate.build.unreleased and candidate.source in of_sources:
            facts += constraints.violations(candidate, spec, ("source",))
    return facts


def _available_cudas(spec: Spec, of_release: Sequence[Candidate], source: Source) -> Violation:
    """The CUDA versions for which a source has the requested releases."""
    cudas = set()
    are_all_listed = True
    for candidate in of_release:
        if candidate.source is not source or candidate.build is None:
            continue
        if candidate.build.unreleased:
            are_all_listed = False
        else:
            cudas.add(candidate.build.cuda)
    available = f"no torch {spec.torch}"
    if cudas:
        listed = ", ".join(sorted(cudas, key=version_key))
        available = f"torch {spec.torch} with CUDA {listed}"
        if are_all_listed:
            available += " only"
    verb = "have" if source.is_plural else "has"
    if not cudas and of_release[0].release.from_index and source.manager == "conda":
        verb = "is not known to have"
        available = f"torch {spec.torch}"
    return Violation(
        axis="cuda",
        fact=f"{source.title} {verb} {available}",
        source=source.origin(of_release[0].release),
    )


def _violations(spec: Spec, survivors: Sequence[Candidate]) -> list[Violation]:
    """The facts against all builds of that release, CUDA and source.

    If each fails for another reason: those against the closest.
    """
    against: dict[Candidate, list[Violation]] = {}
    for candidate in survivors:
        violations = list(constraints.violations(candidate, spec, REMAINING_AXES))
        against[candidate] = [violation for violation in violations if violation.rules_out]
        if not against[candidate]:
            del against[candidate]
    if not against:
        return []
    violated_axes = [
        {violation.axis for violation in violations} for violations in against.values()
    ]
    common = [axis for axis in REMAINING_AXES if all(axis in axes for axes in violated_axes)]
    if not common:
        return min(against.values(), key=len)
    # The newest patch release represents the others.
    newest: dict[tuple[str, str | None, str], Candidate] = {}
    for candidate in against:
        newest.setdefault(
            (candidate.release.minor, candidate.cuda, candidate.source.name), candidate
        )
    violations = []
    for axis in common:
        for candidate in newest.values():
            violations += [violation for violation in against[candidate] if violation.axis == axis]
    return violations


def described_facts(violations: Sequence[Violation]) -> str:
    """The first facts of each kind with their sources, as part of a sentence."""
    return "; ".join(_facts(violations, with_sources=True))


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _facts(violations: Sequence[Violation], *, with_sources: bool) -> list[str]:
    """The first facts of each kind."""
    facts: list[str] = []
    for _, of_axis in itertools.groupby(violations, key=lambda violation: violation.axis):
        unique = dict.fromkeys(
            str(violation) if with_sources else violation.fact for violation in of_axis
        )
        facts += list(unique)[:FACTS]
        if len(unique) > FACTS:
            facts.append(f"and {len(unique) - FACTS} more")
    return facts
