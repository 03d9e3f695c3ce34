"""Why a request has no build: the facts that contradict it, each with its source, and what exists
instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from provision import catalog, sources
from provision.catalog import version_key
from provision.catalog.mismatches import Violation
from provision.core.errors import NoSuchBuild
from provision.core.platforms import PLATFORM
from provision.core.spec_fields import Spec
from provision.resolver import constraints
from provision.resolver.suggest import Neighbor, nearest
from provision.sources.base import Candidate, Source

NEAREST = 3
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
    lines += [
        f"Why ({hint}):",
        *_indented(dict.fromkeys(violation.fact for violation in violations)),
    ]
    return NoSuchBuild(
        f"There is no build for {described_request(spec)}.",
        advice="\n".join(lines),
        details="\n".join(dict.fromkeys(map(str, violations))),
    )


def _offer(neighbor: Neighbor) -> str:
    """The options to use instead, and the source of the build if they do not name it."""
    is_open = neighbor.spec.source == sources.AUTO
    return f"`{neighbor.options}`" + (f" ({neighbor.candidate.source.name})" if is_open else "")


def described_request(spec: Spec) -> str:
    """A spec as part of a sentence."""
    parts = [f"torch {spec.torch}"]
    if spec.cuda is None:
        parts.append("CPU")
    stated = {
        "CUDA": spec.cuda,
        "Python": spec.python,
        "driver": spec.driver,
        "glibc": spec.glibc,
    }
    parts += [f"{title} {value}" for title, value in stated.items() if value]
    if spec.source != sources.AUTO:
        parts.append(f"source {spec.source}")
    parts += spec.gpu
    if spec.platforms != (PLATFORM,):
        parts += spec.platforms
    return ", ".join(parts)


def contradictions(spec: Spec) -> list[Violation]:
    """The facts that contradict a request."""
    versions = reversed(constraints.releases_of(spec.torch))
    of_release = [candidate for version in versions for candidate in sources.candidates_of(version)]
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
    return [_available_cudas(spec, of_release, source) for source in of_sources]


def _available_cudas(spec: Spec, of_release: Sequence[Candidate], source: Source) -> Violation:
    """The CUDA versions for which a source has the requested releases."""
    cudas = {
        candidate.build.cuda
        for candidate in of_release
        if candidate.source is source and candidate.build
    }
    available = f"no torch {spec.torch}"
    if cudas:
        listed = ", ".join(sorted(cudas, key=version_key))
        available = f"torch {spec.torch} with CUDA {listed} only"
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
    """The facts against the closest build of that release, CUDA and source."""
    of_each = (constraints.violations(candidate, spec, REMAINING_AXES) for candidate in survivors)
    against = ([violation for violation in found if violation.rules_out] for found in of_each)
    return min(filter(None, against), key=len, default=[])


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]
