"""A candidate -> the pins of environment.yml, each with its reason and source; the channels they
come from; and which added packages conflict with them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from provision.catalog import CompatibilityRule
from provision.catalog.mismatches import NO_SOURCE
from provision.core.package_names import package_name
from provision.core.spec_fields import Spec
from provision.core.types import Pin
from provision.resolver import python_versions
from provision.sources.base import REQUESTED, Candidate
from provision.sources.pypi_wheels import PIP

DEFAULT_CHANNELS = ("conda-forge",)
# The same reason for a requested and a default Python: the first build writes the default into
# spec.yml, and must then render the same again.
PYTHON_REASON = "one minor version per environment, and this build supports it"
JUPYTER_REASON, JUPYTER_SOURCE = "Jupyter starts this environment through it", "provision kernel"
XXHASH_REASON = (
    "provision_runtime.checkpoint loads, and saves again, several times as fast with its XXH128, "
    "which came with 2.0"
)
XXHASH_SOURCE = "provision_runtime.checkpoint; ifduyue/python-xxhash@v2.0.0:CHANGELOG.rst"
RDMA_REASON = (
    "several hosts over InfiniBand or RoCE: NCCL loads libibverbs when it starts, and without it "
    "falls back to TCP"
)
RDMA_SOURCE = "NVIDIA/nccl@d97a32fac84f69cbd022ffdc57d5687c760742c7:src/misc/ibvsymbols.cc"
NVIDIA_WHEEL = re.compile(r"nvidia-[a-z0-9-]+-cu(\d+)")
NVIDIA_WHEEL_SOURCE = "pytorch/pytorch#186591, #119932"


def pins(spec: Spec, candidate: Candidate, rules: tuple[CompatibilityRule, ...]) -> Iterator[Pin]:
    """Every requirement, in the order in which it is rendered.

    The spec is settled: its Python is chosen.
    """
    assert spec.python is not None
    manager = candidate.source.manager
    yield Pin(
        manager="conda",
        requirement=f"python={spec.python}",
        reason=PYTHON_REASON,
        source=python_versions.source_of(candidate, spec.platforms[0]) or NO_SOURCE,
    )
    yield from candidate.source.torch_pins(candidate, spec)
    if spec.pip and manager != "pip":
        yield PIP
    for rule in rules:
        if rule.consequence == "pin" and rule.requirement:
            yield Pin(
                manager=manager,
                requirement=rule.requirement,
                reason=rule.reason,
                source=rule.source,
            )
    if spec.infiniband:
        yield Pin(manager="conda", requirement="rdma-core", reason=RDMA_REASON, source=RDMA_SOURCE)
    if spec.jupyter:
        yield Pin(
            manager=manager, requirement="ipykernel", reason=JUPYTER_REASON, source=JUPYTER_SOURCE
        )
    if spec.fast_checkpoints:
        package = "xxhash" if manager == "pip" else "python-xxhash"
        yield Pin(
            manager=manager,
            requirement=f"{package}>=2",
            reason=XXHASH_REASON,
            source=XXHASH_SOURCE,
        )
    for requirement in spec.conda:
        yield Pin(manager="conda", requirement=requirement, reason=REQUESTED, source="spec.yml")
    for requirement in applicable(spec):
        yield Pin(manager="pip", requirement=requirement, reason=REQUESTED, source="spec.yml")


def applicable(spec: Spec) -> Iterator[str]:
    """The requirements of `pip` that apply to the spec's Python and platforms, without markers. One
    that applies to some of several platforms keeps its marker."""
    for text in spec.pip:
        if ";" not in text and "#" not in text:
            yield text
            continue
        from provision.core.requirement_lines import parse_lines  # half of what `matrix` would load

        for entry in parse_lines(text):
            requirement = entry.requirement
            assert requirement is not None and spec.python is not None
            applies = [requirement.applies(spec.python, platform) for platform in spec.platforms]
            if all(applies):
                yield str(replace(requirement, marker=""))
            elif any(applies):
                yield str(requirement)


def channels(spec: Spec, candidate: Candidate) -> tuple[str, ...]:
    """The channels in order of priority: those that the source needs first, then those of the
    request."""
    required = candidate.source.channels(candidate)
    requested = spec.channels or DEFAULT_CHANNELS
    return required + tuple(name for name in requested if name not in required)


def added_packages(spec: Spec) -> tuple[str, ...]:
    """The names of the packages that a request adds."""
    return tuple(dict.fromkeys(package_name(text) for text in (*spec.conda, *spec.pip)))


def conflicts(spec: Spec, candidate: Candidate, pins: Iterable[Pin]) -> Iterator[tuple[str, str]]:
    """For each added package that cannot be installed with this torch, a sentence with advice, and
    the source."""
    our_wheels = {
        package_name(pin.requirement): pin
        for pin in pins
        if pin.source != "spec.yml" and pin.manager == "pip"
    }
    requested = list(applicable(spec))
    for requirement in requested:
        name = package_name(requirement)
        pin = our_wheels.get(name)
        if name == "torch" and candidate.source.manager == "conda":
            yield (
                f"`{requirement}` would replace {candidate}. Remove it; --torch and "
                "--cuda choose the build.",
                "",
            )
        elif pin and _excludes(requirement, pin.requirement):
            advice = (
                "Remove it, or request a release that goes with it; `provision matrix explain` "
                "says why each pin is there."
            )
            if name == "torch":
                advice = (
                    f"`provision build {spec.name} --torch VERSION --relock` changes torch and all "
                    "that goes with it."
                )
            elif name in ("torchvision", "torchaudio"):
                advice = "Remove it, or leave ours out with --no-companions."
            sentence = f"`{requirement}` excludes `{pin.requirement}`: {pin.reason}. {advice}"
            yield sentence, f"{pin.requirement}: {pin.source}"
    # NVIDIA wheels must be of one family, that of the build's CUDA; a CPU build takes none. For
    # wheels of torch the rules say so.
    if candidate.build is not None and candidate.source.manager != "conda":
        return
    cuda_major = (candidate.cuda or "no CUDA").split(".")[0]
    for requirement in requested:
        match = NVIDIA_WHEEL.fullmatch(package_name(requirement))
        if match and match[1] != cuda_major:
            yield (
                f"`{requirement}` is of CUDA {match[1]}, and {candidate}: NVIDIA wheels of different "
                "CUDA versions write the same files. Remove it.",
                f"{requirement}: {NVIDIA_WHEEL_SOURCE}",
            )


def _excludes(requirement: str, pin: str) -> bool:
    """Whether a requirement does not allow the version that a pin fixes."""
    from packaging.requirements import Requirement

    if "@" in requirement:
        return False
    requested, pinned = Requirement(requirement), Requirement(pin)
    for specifier in pinned.specifier:
        if specifier.operator == "==":
            version = specifier.version.partition("+")[0]
            return not requested.specifier.contains(version, prereleases=True)
    return False
