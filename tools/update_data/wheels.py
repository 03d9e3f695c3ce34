"""Rows of the table from what wheels say about themselves. Pure: names and metadata in, facts out.

A fact that cannot be read is None and is not stated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.markers import UndefinedEnvironmentName
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from update_data.index import Content, File

MACHINES = {"linux-64": "x86_64", "linux-aarch64": "aarch64"}
OLDEST = Version("1.12")  # the table's first release


@dataclass(frozen=True, kw_only=True)
class Row:
    """Facts that stand in one mapping of the file, with one source."""

    path: tuple[str, ...]
    values: Mapping[str, Any]
    source: str


@dataclass(frozen=True, kw_only=True)
class Pins:
    """What a torch wheel requires of NVIDIA and triton on its machine."""

    cuda: str | None  # 12.1
    toolkit: str | None  # 13.2.2, where one is pinned
    nccl: str | None
    cudnn: str | None
    triton: str  # a specifier, or none
    has_cuda: bool | None  # whether there is CUDA code in it; None: its names were not read


def releases(files: Sequence[File]) -> list[str]:
    """Releases on the index that the table should have, oldest first."""
    versions = sorted({Version(file.base) for file in files})
    return [str(version) for version in versions if version >= OLDEST]


def of_machine(
    files: Sequence[File], release: str, machine: str, local: str | None = None
) -> list[File]:
    """Wheels of one release for one machine; of several rebuilds, the newest."""
    wheels = []
    for file in files:
        if file.base == release and file.machine == machine and file.version.local == local:
            wheels.append(file)
    newest = max((file.build for file in wheels), default=())
    return [file for file in wheels if file.build == newest]


def specimen(files: Sequence[File]) -> File | None:
    """The wheel whose metadata stands for all: its requirements differ by Python in markers only."""
    plain = [file for file in files if not file.python.endswith("t")]
    return max(plain, key=lambda file: (file.python in ("3.10", "3.11"), file.name), default=None)


def pins(content: Content, machine: str, python: str) -> Pins:
    """Requirements that hold on a Linux machine of this kind, with this Python."""
    requirements: dict[str, Requirement] = {}
    for text in content.requirements:
        requirement = Requirement(text)
        if _holds(requirement, machine, python):
            requirements[requirement.name] = requirement
    toolkit = _exact(requirements.get("cuda-toolkit"))
    exact_cuda = toolkit or _exact_of(requirements, "nvidia-cuda-runtime")
    has_cuda = None
    if content.names is not None:
        has_cuda = any("libtorch_cuda" in name for name in content.names)
    return Pins(
        cuda=".".join(exact_cuda.split(".")[:2]) if exact_cuda else None,
        toolkit=toolkit,
        nccl=_exact_of(requirements, "nvidia-nccl"),
        cudnn=_exact_of(requirements, "nvidia-cudnn-cu"),
        triton=_triton(content, machine),
        has_cuda=has_cuda,
    )


def build_tag(cuda: str) -> str:
    """cu121 for 12.1."""
    return f"cu{cuda.replace('.', '')}"


def default_rows(release: str, platform: str, files: Sequence[File], pins: Pins) -> list[Row]:
    """What the index serves as plain torch==V on a platform."""
    path = (release, "index_default", platform)
    machine = MACHINES[platform]
    build = None
    if pins.cuda:
        build = build_tag(pins.cuda)
    elif pins.has_cuda is False:
        build = "cpu"
    pythons = sorted({file.python for file in files}, key=_python_key)
    tags = ", ".join(sorted({file.platform_tag for file in files}))
    return [
        Row(
            path=path,
            values={"build": build, "toolkit": pins.toolkit},
            source=f"PyPI metadata torch=={release} (linux {machine} wheel)",
        ),
        Row(
            path=(*path, "python"),
            values={
                "versions": [python for python in pythons if not python.endswith("t")],
                "free_threaded": [python for python in pythons if python.endswith("t")],
            },
            source=f"PyPI file list torch=={release} (linux {machine} wheels)",
        ),
        Row(
            path=(*path, "glibc"),
            values={"minimum": glibc(files)},
            source=f"PyPI file list torch=={release} (platform tag {tags})",
        ),
    ]


def build_rows(release: str, tag: str, pins: Pins, source: str, on_index: bool) -> list[Row]:
    """What a CUDA wheel pins."""
    path = (release, "wheels", tag)
    linkage = "nvidia-nccl wheel" if pins.nccl else None
    rows = [
        Row(path=path, values={"cuda": pins.cuda, "on_pypi": on_index}, source=source),
        Row(path=(*path, "nccl"), values={"version": pins.nccl, "linkage": linkage}, source=source),
        Row(path=(*path, "cudnn"), values={"version": pins.cudnn}, source=source),
    ]
    return [row for row in rows if any(value is not None for value in row.values.values())]


# The library that holds what torch.cuda.get_arch_list() returns: "sm_80 sm_90 compute_90", where
# compute_ is PTX.
ARCHITECTURES_IN = "torch/lib/libtorch_python.so"
_ARCHITECTURES = re.compile(rb"(?:sm|compute)_\d+[af]?(?: (?:sm|compute)_\d+[af]?)+(?=\0)")


def architecture_row(release: str, platform: str, tag: str, library: bytes) -> Row | None:
    """The GPU architectures that a CUDA wheel was compiled for, from the library itself."""
    lists = set(_ARCHITECTURES.findall(library))
    if len(lists) != 1:
        return None
    names = lists.pop().decode().split()
    values = {
        "sm": [name for name in names if name.startswith("sm_")],
        "ptx": any(name.startswith("compute_") for name in names),
    }
    keys = ("wheels", tag) if platform == "linux-64" else ("index_default", platform)
    source = (
        f"PyPI wheel torch=={release} (linux {MACHINES[platform]}): the list in {ARCHITECTURES_IN}"
    )
    return Row(path=(release, *keys, "architectures"), values=values, source=source)


def glibc(files: Sequence[File]) -> str | None:
    """The glibc that platform tags promise. manylinux1 wheels of torch need a newer one than the
    tag says, so it proves nothing."""
    floors = {_tagged_glibc(file.platform_tag) for file in files}
    return floors.pop() if len(floors) == 1 else None


def companion(
    torch: str, candidates: Iterable[tuple[str, Content | None]]
) -> tuple[str, bool] | None:
    """The release of torchvision or torchaudio for a torch release, and whether it pins torch
    exactly.

    One that pins this very torch, else the newest that admits it, or that names no torch at all.
    Candidates come newest first; none is read beyond the first that is made for an older torch.
    """
    admitting = None
    for version, content in candidates:
        if content is None:
            continue
        specifiers = SpecifierSet()
        for text in content.requirements:
            requirement = Requirement(text)
            if requirement.name == "torch":
                specifiers = requirement.specifier
                break
        exact = _exact_version(specifiers)
        if exact == torch:
            return version, True
        if exact is None and specifiers.contains(torch):
            admitting = admitting or version
        elif exact and Version(exact) < Version(torch):
            break
    return (admitting, False) if admitting else None


def companion_row(
    name: str, release: str, version: str, pins_torch: bool, pythons: Sequence[str] | None
) -> Row:
    """pythons: those that it has wheels for, if torch has more."""
    values: dict[str, Any] = {"version": version, "pins_torch": pins_torch}
    if pythons is not None:
        values["python"] = list(pythons)
    return Row(path=(release, name), values=values, source=f"PyPI metadata {name}=={version}")


def fewer_pythons(torch: Sequence[File], companions: Sequence[Sequence[File]]) -> list[str] | None:
    """Pythons that every companion has wheels for, if torch has others."""
    torch_pythons = {file.python for file in torch if not file.python.endswith("t")}
    common = set()
    for python in torch_pythons:
        if all(any(file.runs_on(python) for file in files) for files in companions):
            common.add(python)
    return sorted(common, key=_python_key) if common != torch_pythons else None


def disagreements(release: str, pins_by_platform: Mapping[str, Pins]) -> list[str]:
    """Where the two machines' wheels pin different versions: the table states a build's pins once."""
    versions = set()
    for pins in pins_by_platform.values():
        if pins.cuda:
            versions.add((pins.cuda, pins.nccl, pins.cudnn))
    if len(versions) < 2:
        return []
    listing = "; ".join(
        f"{platform}: CUDA {pins.cuda}, NCCL {pins.nccl}, cuDNN {pins.cudnn}"
        for platform, pins in pins_by_platform.items()
    )
    return [
        f"{release}: the index's wheels differ by machine, and the table has one row for both ({listing})"
    ]


def _holds(requirement: Requirement, machine: str, python: str) -> bool:
    if requirement.marker is None:
        return True
    environment = {
        "platform_system": "Linux",
        "sys_platform": "linux",
        "platform_machine": machine,
        "os_name": "posix",
    }
    try:
        return requirement.marker.evaluate(
            {
                **environment,
                "python_version": python,
                "python_full_version": f"{python}.0",
                "extra": "",
            }
        )
    except UndefinedEnvironmentName:
        return False


def _exact(requirement: Requirement | None) -> str | None:
    return _exact_version(requirement.specifier) if requirement else None


def _exact_version(specifiers: SpecifierSet) -> str | None:
    for specifier in specifiers:
        if specifier.operator == "==":
            return specifier.version
    return None


def _exact_of(requirements: Mapping[str, Requirement], prefix: str) -> str | None:
    """The exact version of the first requirement whose name starts so."""
    for name, requirement in requirements.items():
        if name.startswith(prefix):
            return _exact(requirement)
    return None


def _triton(content: Content, machine: str) -> str:
    """triton's marker also names Pythons; any that holds for the machine counts."""
    for requirement in map(Requirement, content.requirements):
        if requirement.name == "triton" and any(
            _holds(requirement, machine, python)
            for python in ("3.8", "3.10", "3.11", "3.12", "3.13")
        ):
            return str(requirement.specifier)
    return "none"


def _tagged_glibc(tag: str) -> str | None:
    if tag.startswith("manylinux2014_"):
        return "2.17"
    match = re.match(r"manylinux_(\d+)_(\d+)_", tag)
    return f"{match[1]}.{match[2]}" if match else None


def _python_key(python: str) -> tuple[int, ...]:
    return tuple(map(int, python.rstrip("t").split(".")))
