"""One refresh: read the index, work out rows, hold them against the table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from packaging.version import Version

from provision.core.errors import NoSuchBuild
from update_data.compare import Findings, compare, unproven
from update_data.index import Content, File, Index, torch_index
from update_data.wheels import (
    ARCHITECTURES_IN,
    MACHINES,
    Pins,
    Row,
    architecture_row,
    build_rows,
    companion,
    companion_row,
    default_rows,
    disagreements,
    fewer_pythons,
    of_machine,
    pins,
    releases,
    specimen,
)

COMPANIONS = ("torchvision", "torchaudio")
NCCL_WHEELS = ("nvidia-nccl-cu11", "nvidia-nccl-cu12", "nvidia-nccl-cu13")


def refresh(
    index: Index, table: Mapping[str, Any], only: Sequence[str] = (), architectures: bool = False
) -> Findings:
    """All that the index says about the releases of the table and newer ones, against the table.

    architectures: also read the library in each CUDA wheel that lists what it was compiled for; some 10 MB each, not the wheel.
    """
    found = Findings()
    torch = index.files("torch")
    if not torch:
        raise NoSuchBuild(
            "The package index has no torch.",
            advice="Name another with --index, or in pip's settings.",
        )
    wanted = _wanted(releases(torch), table, only)
    vision_and_audio = {name: index.files(name) for name in COMPANIONS}
    index.read(_specimens(torch, wanted, {} if only else vision_and_audio))
    rows: list[Row] = []
    for release in wanted:
        rows += _release_rows(index, release, torch, found, architectures)
        rows += _companion_rows(index, release, torch, vision_and_audio)
        rows += _torch_index_rows(release, table, found)
    compare(rows, table, found)
    unread = {line.split()[0] for line in found.unread}
    unproven(
        table,
        rows,
        [one for one in wanted if one in table and one not in unread],
        found,
        architectures,
    )
    return found


def refresh_nccl(index: Index, table: Mapping[str, Any]) -> Findings:
    """The lists of NCCL wheels, against nccl.yml."""
    found = Findings()
    rows = []
    for name in NCCL_WHEELS:
        versions = [str(one) for one in sorted({file.version for file in index.files(name)})]
        rows += (
            [
                Row(
                    path=("nccl_wheels", name),
                    values={"versions": versions},
                    source=f"PyPI file list {name}",
                )
            ]
            if versions
            else []
        )
        found.unproven += [] if versions else [f"nccl_wheels {name}: the index has none"]
    compare(rows, table, found)
    return found


def _wanted(there: Sequence[str], table: Mapping[str, Any], only: Sequence[str]) -> list[str]:
    """Releases of the table and newer ones: one that the table left out between its own was left out by a person."""
    newest = max(map(Version, table))
    known = [
        one for one in dict.fromkeys([*table, *there]) if one in table or Version(one) > newest
    ]
    missing = [one for one in only if one not in known and one not in there]
    if missing:
        raise NoSuchBuild(
            f"torch {', '.join(missing)} is neither on the index nor in the table.",
            advice=f"The index has {', '.join(there)}.",
        )
    return sorted(only or known, key=Version)


def _specimens(
    torch: Sequence[File], wanted: Iterable[str], companions: Mapping[str, Sequence[File]]
) -> list[File]:
    """Every wheel whose metadata will be looked at, so that they are read together."""
    found = [
        specimen(of_machine(torch, release, machine))
        for release in wanted
        for machine in MACHINES.values()
    ]
    for files in companions.values():
        found += [
            specimen(of_machine(files, version, "x86_64"))
            for version in {file.base for file in files}
        ]
    return [file for file in found if file]


def _release_rows(
    index: Index, release: str, torch: Sequence[File], found: Findings, architectures: bool
) -> list[Row]:
    rows: list[Row] = []
    by_platform: dict[str, Pins] = {}
    for platform, machine in MACHINES.items():
        files = of_machine(torch, release, machine)
        one = specimen(files)
        content = index.content(one) if one else None
        if one is None or content is None:
            found.unread += [f"{release} {platform}: metadata of {one.name}"] if one else []
            continue
        by_platform[platform] = pins(content, machine, one.python)
        rows += default_rows(release, platform, files, by_platform[platform])
        if architectures and by_platform[platform].cuda:
            rows += _architecture_rows(index, release, platform, one, by_platform[platform], found)
    found.conflicts += disagreements(release, by_platform)
    return rows + (
        _default_build_rows(release, by_platform["linux-64"]) if "linux-64" in by_platform else []
    )


def _architecture_rows(
    index: Index, release: str, platform: str, file: File, mine: Pins, found: Findings
) -> list[Row]:
    assert mine.cuda
    library = index.piece(file, ARCHITECTURES_IN)
    row = (
        architecture_row(release, platform, f"cu{mine.cuda.replace('.', '')}", library)
        if library
        else None
    )
    if row is None:
        found.unread.append(f"{release} {platform}: the GPU architectures in {file.name}")
    return [row] if row else []


def _default_build_rows(release: str, mine: Pins) -> list[Row]:
    source = f"PyPI metadata torch=={release}"
    rows = [Row(path=(release, "triton"), values={"requirement": mine.triton}, source=source)]
    return rows + (
        build_rows(release, f"cu{mine.cuda.replace('.', '')}", mine, source, True)
        if mine.cuda
        else []
    )


def _companion_rows(
    index: Index, release: str, torch: Sequence[File], companions: Mapping[str, Sequence[File]]
) -> list[Row]:
    chosen: dict[str, tuple[str, bool]] = {}
    for name, files in companions.items():
        best = companion(release, _contents(index, files))
        if best:
            chosen[name] = best
    mine = of_machine(torch, release, "x86_64")
    theirs = [
        of_machine(companions[name], version, "x86_64")
        for name, (version, pinned) in chosen.items()
        if pinned or name == "torchvision"
    ]
    fewer = fewer_pythons(mine, theirs) if mine and theirs else None
    return [
        companion_row(name, release, version, pinned, fewer if name == "torchvision" else None)
        for name, (version, pinned) in chosen.items()
    ]


def _contents(index: Index, files: Sequence[File]) -> Iterator[tuple[str, Content | None]]:
    """Each release of a project with what its wheel says, newest first, read as it is asked for."""
    for version in sorted({file.base for file in files}, key=Version, reverse=True):
        one = specimen(of_machine(files, version, "x86_64"))
        yield version, index.content(one) if one else None


def _torch_index_rows(release: str, table: Mapping[str, Any], found: Findings) -> list[Row]:
    """Builds that only PyTorch's own wheel index has, where the user has named it."""
    rows: list[Row] = []
    for tag, build in table.get(release, {}).get("wheels", {}).items():
        index = None if build["on_pypi"] else torch_index(tag)
        one = specimen(of_machine(index.files("torch"), release, "x86_64", tag)) if index else None
        content = index.content(one) if index and one else None
        if one and content is None:
            found.unread.append(f"{release} {tag}: metadata of {one.name}")
        elif one and content:
            source = f"metadata torch=={release}+{tag} (PyTorch wheel index)"
            rows += build_rows(release, tag, pins(content, "x86_64", one.python), source, False)
    return rows
