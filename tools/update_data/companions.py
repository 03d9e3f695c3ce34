"""torchvision and torchaudio of a release, from what their wheels on a package index require."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from provision.adapters.uv.linux_wheels import LinuxWheel
from provision.workflow.index_facts import Row, TorchIndex, exact_version, of_machine, specimen

COMPANIONS = ("torchvision", "torchaudio")


def add_companions(row: Row, index: TorchIndex, version: str) -> None:
    """Add those of a release of torch to its row."""
    torch = of_machine(index.torch, version, "x86_64")
    required: list[list[LinuxWheel]] = []
    for name in COMPANIONS:
        wheels = index.index.wheels(name)
        best = companion(version, _requirements_of(index, wheels))
        if best is None:
            continue
        row[name] = {"version": best[0], "pins_torch": best[1]}
        row[name]["source"] = f"PyPI metadata {name}=={best[0]}"
        if best[1] or name == "torchvision":
            required.append(of_machine(wheels, best[0], "x86_64"))
    pythons = fewer_pythons(torch, required) if torch and required else None
    if pythons is not None and row["torchvision"]["source"]:
        row["torchvision"]["python"] = pythons


def _requirements_of(
    index: TorchIndex, wheels: Sequence[LinuxWheel]
) -> Iterator[tuple[str, tuple[str, ...] | None]]:
    """Each release of a project with what its wheel requires, newest first, read when needed."""
    for version in sorted({wheel.base for wheel in wheels}, key=Version, reverse=True):
        wheel = specimen(of_machine(wheels, version, "x86_64"))
        yield version, index.index.requirements(wheel) if wheel else None


def companion(
    torch: str, candidates: Iterable[tuple[str, Sequence[str] | None]]
) -> tuple[str, bool] | None:
    """The release of torchvision or torchaudio for a torch release, and whether it pins torch
    exactly.

    One that pins this very torch, else the newest that admits it, or that names no torch at all.
    Candidates come newest first; none is read beyond the first that is made for an older torch.
    """
    admitting = None
    for version, requirements in candidates:
        if requirements is None:
            continue
        specifiers = SpecifierSet()
        for requirement in map(Requirement, requirements):
            if requirement.name == "torch":
                specifiers = requirement.specifier
        exact = exact_version(specifiers)
        if exact == torch:
            return version, True
        if exact is None and specifiers.contains(torch):
            admitting = admitting or version
        elif exact and Version(exact) < Version(torch):
            break
    return (admitting, False) if admitting else None


def fewer_pythons(
    torch: Sequence[LinuxWheel], companions: Sequence[Sequence[LinuxWheel]]
) -> list[str] | None:
    """Pythons that every companion has wheels for, if torch has others."""
    torch_pythons = {wheel.python for wheel in torch if not wheel.python.endswith("t")}
    common = set(torch_pythons)
    for wheels in companions:
        common &= {python for python in common if any(wheel.runs_on(python) for wheel in wheels)}
    return sorted(common, key=Version) if common != torch_pythons else None
