"""The packages that a request adds, against what torch brings: refused where both cannot be in one
environment."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from provision.core.spec_fields import Spec
from provision.core.types import Pin
from provision.resolver.spec import package_name
from provision.sources.base import Candidate

NVIDIA_WHEEL = re.compile(r"nvidia-[a-z0-9-]+-cu(\d+)")
NVIDIA_WHEEL_SOURCE = "pytorch/pytorch#186591, #119932"


def added_packages(spec: Spec) -> tuple[str, ...]:
    """The names of the packages that a request adds."""
    return tuple(dict.fromkeys(package_name(text) for text in (*spec.conda, *spec.pip)))


def conflicts(spec: Spec, candidate: Candidate, pins: Iterable[Pin]) -> Iterator[str]:
    """Each added package that cannot be installed with this torch, as a sentence with its source
    and what to do."""
    our_wheels = {
        package_name(pin.requirement): pin
        for pin in pins
        if pin.source != "spec.yml" and pin.manager == "pip"
    }
    for requirement in spec.pip:
        name = package_name(requirement)
        pin = our_wheels.get(name)
        if name == "torch" and candidate.source.manager == "conda":
            yield (
                f"`{requirement}` puts a wheel of torch over {candidate}. Remove it; --torch and "
                "--cuda choose the build."
            )
        elif pin and _excludes(requirement, pin.requirement):
            advice = (
                "Remove it, or ask for a release that goes with it; `provision matrix explain` "
                "says why each pin is there."
            )
            if name in ("torchvision", "torchaudio"):
                advice = "Remove it, or leave ours out with --no-companions."
            yield (
                f"`{requirement}` excludes `{pin.requirement}`: {pin.reason} ({pin.source}). "
                f"{advice}"
            )
    yield from _nvidia_wheel_conflicts(spec, candidate)


def _excludes(requirement: str, pin: str) -> bool:
    """Whether a requirement does not allow the version that a pin fixes."""
    from packaging.requirements import Requirement

    requested, pinned = Requirement(requirement), Requirement(pin)
    if requested.url is not None:
        return False
    for specifier in pinned.specifier:
        if specifier.operator == "==":
            version = specifier.version.partition("+")[0]
            return not requested.specifier.contains(version, prereleases=True)
    return False


def _nvidia_wheel_conflicts(spec: Spec, candidate: Candidate) -> Iterator[str]:
    """At most one family of NVIDIA wheels, that of the build's CUDA, and none with a CPU build.

    For wheels of torch the rules say so too.
    """
    families = {}
    for requirement in spec.pip:
        match = NVIDIA_WHEEL.fullmatch(package_name(requirement))
        if match:
            families[requirement] = match[1]
    if not families:
        return
    listed = ", ".join(f"`{requirement}`" for requirement in families)
    cuda_major = (candidate.cuda or "").split(".")[0]
    if candidate.build is None:
        yield f"{listed} is about GPUs, and {candidate} has no use for it. Remove it."
    elif len(set(families.values())) > 1:
        yield (
            f"{listed}: NVIDIA wheels of different CUDA versions write the same files "
            f"({NVIDIA_WHEEL_SOURCE}). Keep one family."
        )
    elif candidate.source.manager == "conda" and cuda_major not in families.values():
        yield (
            f"{listed} is for another CUDA than {candidate}; two of them in one process break each "
            f"other ({NVIDIA_WHEEL_SOURCE}). Remove it."
        )
