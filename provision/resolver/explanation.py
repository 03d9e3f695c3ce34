"""Explains an environment: every choice, pin, rule and warning of a resolution."""

from __future__ import annotations

from provision.core.dataclass import frozen
from provision.core.platforms import Platform
from provision.core.spec_fields import Spec
from provision.core.types import Choice, HostGpus, Pin
from provision.resolver.resolution import decide


@frozen
class Explanation:
    """A resolution with its reasons."""

    name: str
    choices: tuple[Choice, ...]
    pins: tuple[Pin, ...]
    rules: tuple[Choice, ...]  # all that hold, with any consequence
    warnings: tuple[Choice, ...]
    channels: tuple[str, ...]
    platforms: tuple[Platform, ...]
    virtual_packages: dict[str, str]


def explain(spec: Spec, machine: HostGpus | None = None) -> Explanation:
    """Resolve a spec and explain the result. Raises the errors of `resolve`."""
    resolution, matching_rules = decide(spec, machine or HostGpus())
    rules = [
        Choice(
            what=rule.id,
            value=rule.requirement or rule.consequence,
            reason=rule.reason,
            source=rule.source,
        )
        for rule in matching_rules
    ]
    return Explanation(
        name=resolution.spec.name,
        choices=resolution.choices,
        pins=resolution.pins,
        rules=tuple(rules),
        warnings=resolution.warnings,
        channels=resolution.channels,
        platforms=resolution.platforms,
        virtual_packages=dict(resolution.virtual_packages),
    )
