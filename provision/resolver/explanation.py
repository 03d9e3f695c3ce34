"""Explains an environment: every choice, pin, rule and warning of a resolution, and the
alternatives that were not chosen."""

from __future__ import annotations

from collections.abc import Iterator

from provision import sources
from provision.core.dataclass import frozen
from provision.core.platforms import Platform
from provision.core.spec_fields import Spec
from provision.core.types import Choice, HostGpus, Pin
from provision.resolver import constraints
from provision.resolver.resolution import decide
from provision.sources.base import Candidate

NOT_REQUESTED = "not requested"
ALSO_FITS = (
    "fits as well; the newest release comes first, of that the newest CUDA, then the usual source"
)


@frozen
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
        not_chosen=tuple(_not_chosen(decision.described, decision.candidate)),
        channels=resolution.channels,
        platforms=resolution.platforms,
        virtual_packages=dict(resolution.virtual_packages),
    )


def _not_chosen(described: Spec, chosen: Candidate) -> Iterator[Choice]:
    """The other builds of the release, and of newer ones that the request selects, and why each was
    not chosen."""
    for version in reversed(constraints.releases_of(described.torch)):
        for candidate in sources.candidates_of(version):
            if candidate is chosen or (candidate.build is None and chosen.build is not None):
                continue
            reason = ALSO_FITS
            if not constraints.fits(candidate, described, "cuda", "source"):
                reason = NOT_REQUESTED
            elif violations := list(constraints.violations(candidate, described)):
                # The facts carry their own sources.
                reason = "; ".join(dict.fromkeys(map(str, violations)))
            yield Choice(what="build", value=str(candidate), reason=reason, source="")
        if version == chosen.release.version:
            return
