"""The packages that a request adds beside torch, against what torch brings: refused where both cannot be."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from provision.core.types import Pin, Spec
from provision.resolver.candidate import Candidate

FAMILY = re.compile(r"nvidia-[a-z0-9-]+-cu(\d+)")
FAMILY_SOURCE = "pytorch/pytorch#186591, #119932"


def package(requirement: str) -> str:
    """The name in a requirement of either kind, in the package index's spelling."""
    name = re.split(r"[^A-Za-z0-9._-]", requirement.rpartition("::")[2].strip(), maxsplit=1)[0]
    return re.sub(r"[._-]+", "-", name).lower()


def packages(spec: Spec) -> tuple[str, ...]:
    """The names of what a request adds."""
    return tuple(dict.fromkeys(package(text) for text in (*spec.conda, *spec.pip)))


def conflicts(spec: Spec, candidate: Candidate, pins: Iterable[Pin]) -> Iterator[str]:
    """Each extra that cannot be beside this torch, as a sentence with its source and what to do."""
    ours = {
        package(pin.requirement): pin
        for pin in pins
        if pin.source != "spec.yml" and pin.manager == "pip"
    }
    for text in spec.pip:
        if package(text) == "torch" and candidate.source != "wheels":
            yield f"`{text}` puts a wheel of torch over {candidate}. Remove it; --torch and --cuda choose the build."
        elif (pin := ours.get(package(text))) and _excludes(text, pin.requirement):
            yield f"`{text}` excludes `{pin.requirement}`: {pin.reason} ({pin.source}). {_advice(package(text))}"
    yield from _families(spec, candidate)


def _advice(name: str) -> str:
    if name in ("torchvision", "torchaudio"):
        return "Remove it, or leave ours out with --no-companions."
    return "Remove it, or ask for a release that goes with it; `provision matrix explain` says why each pin is there."


def _excludes(asked: str, ours: str) -> bool:
    """Whether our exact pin is a version that the extra does not allow."""
    from packaging.requirements import Requirement

    wanted, pinned = Requirement(asked), Requirement(ours)
    exact = [one.version for one in pinned.specifier if one.operator == "=="]
    return (
        bool(exact)
        and wanted.url is None
        and not wanted.specifier.contains(exact[0].partition("+")[0], prereleases=True)
    )


def _families(spec: Spec, candidate: Candidate) -> Iterator[str]:
    """One family of NVIDIA wheels at most, of the build's CUDA, and none beside a CPU build. Beside wheels the rules say so too."""
    asked = {text: found[1] for text in spec.pip if (found := FAMILY.fullmatch(package(text)))}
    listed = ", ".join(f"`{text}`" for text in asked)
    if asked and candidate.build is None:
        yield f"{listed} is about GPUs, and {candidate} has no use for it. Remove it."
    elif len(set(asked.values())) > 1:
        yield f"{listed}: NVIDIA wheels of different CUDA versions write the same files ({FAMILY_SOURCE}). Keep one family."
    elif (
        asked
        and candidate.source != "wheels"
        and (candidate.cuda or "").split(".")[0] not in asked.values()
    ):
        yield f"{listed} is for another CUDA than {candidate}; two of them in one process break each other ({FAMILY_SOURCE}). Remove it."
