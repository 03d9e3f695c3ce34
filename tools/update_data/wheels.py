"""What wheels say about themselves -> rows of the table. Pure: names and metadata in, facts out.

A fact that cannot be read off is None and is not stated.
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
    return [
        str(version)
        for version in sorted({Version(file.base) for file in files})
        if version >= OLDEST
    ]


def of_machine(
    files: Sequence[File], release: str, machine: str, local: str | None = None
) -> list[File]:
    """Wheels of one release for one machine; the newest rebuild where there are several."""
    mine = [
        f for f in files if f.base == release and f.machine == machine and f.version.local == local
    ]
    newest = max((f.build for f in mine), default=())
    return [f for f in mine if f.build == newest]


def specimen(files: Sequence[File]) -> File | None:
    """The wheel whose metadata stands for all: its requirements differ by Python in markers only."""
    plain = [file for file in files if not file.python.endswith("t")]
    return max(plain, key=lambda file: (file.python in ("3.10", "3.11"), file.name), default=None)


def pins(content: Content, machine: str, python: str) -> Pins:
    """Requirements that hold on a Linux machine of this kind, with this Python."""
    held = {
        one.name: one
        for one in map(Requirement, content.requirements)
        if _holds(one, machine, python)
    }
    toolkit = _exact(held.get("cuda-toolkit"))
    runtime = next(
        (_exact(one) for name, one in held.items() if name.startswith("nvidia-cuda-runtime")), None
    )
    exact = toolkit or runtime
    return Pins(
        cuda=".".join(exact.split(".")[:2]) if exact else None,
        toolkit=toolkit,
        nccl=next(
            (_exact(one) for name, one in held.items() if name.startswith("nvidia-nccl")), None
        ),
        cudnn=next(
            (_exact(one) for name, one in held.items() if name.startswith("nvidia-cudnn-cu")), None
        ),
        triton=_triton(content, machine),
        has_cuda=None
        if content.names is None
        else any("libtorch_cuda" in name for name in content.names),
    )


def default_rows(release: str, platform: str, files: Sequence[File], found: Pins) -> list[Row]:
    """What the index serves as plain torch==V on a platform."""
    path = (release, "index_default", platform)
    pythons = sorted({file.python for file in files}, key=_python_key)
    listed = f"PyPI file list torch=={release} (linux {MACHINES[platform]} wheels)"
    metadata = f"PyPI metadata torch=={release} (linux {MACHINES[platform]} wheel)"
    build = (
        f"cu{found.cuda.replace('.', '')}"
        if found.cuda
        else "cpu"
        if found.has_cuda is False
        else None
    )
    plain = [python for python in pythons if not python.endswith("t")]
    free = [python for python in pythons if python.endswith("t")]
    rows = [
        Row(path=path, values={"build": build, "toolkit": found.toolkit}, source=metadata),
        Row(
            path=(*path, "python"), values={"versions": plain, "free_threaded": free}, source=listed
        ),
    ]
    floor, tags = glibc(files), ", ".join(sorted({file.platform_tag for file in files}))
    source = f"PyPI file list torch=={release} (platform tag {tags})"
    return [*rows, Row(path=(*path, "glibc"), values={"minimum": floor}, source=source)]


def build_rows(release: str, tag: str, found: Pins, source: str, on_index: bool) -> list[Row]:
    """What a CUDA wheel pins."""
    path = (release, "wheels", tag)
    package = "nvidia-nccl wheel" if found.nccl else None
    rows = [
        Row(path=path, values={"cuda": found.cuda, "on_pypi": on_index}, source=source),
        Row(
            path=(*path, "nccl"), values={"version": found.nccl, "linkage": package}, source=source
        ),
        Row(path=(*path, "cudnn"), values={"version": found.cudnn}, source=source),
    ]
    return [row for row in rows if any(value is not None for value in row.values.values())]


# The library that holds what torch.cuda.get_arch_list() tells: "sm_80 sm_90 compute_90", where compute_ is PTX.
ARCHITECTURES_IN = "torch/lib/libtorch_python.so"
_LISTED = re.compile(rb"(?:sm|compute)_\d+[af]?(?: (?:sm|compute)_\d+[af]?)+(?=\0)")


def architecture_row(release: str, platform: str, tag: str, library: bytes) -> Row | None:
    """The GPU architectures that a CUDA wheel was compiled for, out of the library itself."""
    found = set(_LISTED.findall(library))
    if len(found) != 1:
        return None
    names = found.pop().decode().split()
    values = {
        "sm": [name for name in names if name.startswith("sm_")],
        "ptx": any(name.startswith("compute_") for name in names),
    }
    place = ("wheels", tag) if platform == "linux-64" else ("index_default", platform)
    source = (
        f"PyPI wheel torch=={release} (linux {MACHINES[platform]}): the list in {ARCHITECTURES_IN}"
    )
    return Row(path=(release, *place, "architectures"), values=values, source=source)


def glibc(files: Sequence[File]) -> str | None:
    """The glibc that platform tags promise. manylinux1 wheels of torch need a newer one than the tag says, so it proves nothing."""
    floors = {_tagged_glibc(file.platform_tag) for file in files}
    return floors.pop() if len(floors) == 1 else None


def companion(
    torch: str, candidates: Iterable[tuple[str, Content | None]]
) -> tuple[str, bool] | None:
    """The release of torchvision or torchaudio for a torch release, and whether it pins torch exactly.

    One that pins this very torch, else the newest that admits it, or that names no torch at all. Candidates come newest first; they
    are not asked for beyond the first that is made for an older torch.
    """
    admitted = None
    for version, content in candidates:
        if content is None:
            continue
        wanted = next(
            (
                one.specifier
                for one in map(Requirement, content.requirements)
                if one.name == "torch"
            ),
            SpecifierSet(),
        )
        exact = next((one.version for one in wanted if one.operator == "=="), None)
        if exact == torch:
            return version, True
        if exact is None and wanted.contains(torch):
            admitted = admitted or version
        elif exact and Version(exact) < Version(torch):
            break
    return (admitted, False) if admitted else None


def companion_row(
    name: str, release: str, version: str, pins_torch: bool, pythons: Sequence[str] | None
) -> Row:
    """pythons: those that it has wheels for, where torch has more."""
    fewer = {"python": list(pythons)} if pythons is not None else {}
    return Row(
        path=(release, name),
        values={"version": version, "pins_torch": pins_torch, **fewer},
        source=f"PyPI metadata {name}=={version}",
    )


def fewer_pythons(torch: Sequence[File], companions: Sequence[Sequence[File]]) -> list[str] | None:
    """Pythons that every companion has wheels for, if torch has others."""
    mine = {file.python for file in torch if not file.python.endswith("t")}
    theirs = {
        python
        for python in mine
        if all(any(file.runs_on(python) for file in files) for files in companions)
    }
    return sorted(theirs, key=_python_key) if theirs != mine else None


def disagreements(release: str, found: Mapping[str, Pins]) -> list[str]:
    """Where the two machines' wheels pin different versions: the table states a build's pins once."""
    both = [pins for pins in found.values() if pins.cuda]
    if len(both) < 2 or (both[0].cuda, both[0].nccl, both[0].cudnn) == (
        both[1].cuda,
        both[1].nccl,
        both[1].cudnn,
    ):
        return []
    said = "; ".join(
        f"{platform}: CUDA {one.cuda}, NCCL {one.nccl}, cuDNN {one.cudnn}"
        for platform, one in found.items()
    )
    return [
        f"{release}: the index's wheels differ by machine, and the table has one row for both ({said})"
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
    if requirement is None:
        return None
    return next((one.version for one in requirement.specifier if one.operator == "=="), None)


def _triton(content: Content, machine: str) -> str:
    """triton's marker also names Pythons; any that holds for the machine counts."""
    for one in map(Requirement, content.requirements):
        if one.name == "triton" and any(
            _holds(one, machine, python) for python in ("3.8", "3.10", "3.11", "3.12", "3.13")
        ):
            return str(one.specifier)
    return "none"


def _tagged_glibc(tag: str) -> str | None:
    if tag.startswith("manylinux2014_"):
        return "2.17"
    found = re.match(r"manylinux_(\d+)_(\d+)_", tag)
    return f"{found[1]}.{found[2]}" if found else None


def _python_key(python: str) -> tuple[int, ...]:
    return tuple(map(int, python.rstrip("t").split(".")))
