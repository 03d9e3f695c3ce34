"""One refresh: reads the index, makes rows of it, and compares them with the table."""

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
    build_tag,
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


def refresh(
    index: Index, table: Mapping[str, Any], only: Sequence[str] = (), architectures: bool = False
) -> Findings:
    """All that the index says about the releases of the table and newer ones, compared with the
    table.

    architectures: also read the library in each CUDA wheel that lists what it was compiled for;
    some 10 MB each, not the wheel.
    """
    findings = Findings()
    torch = index.files("torch")
    if not torch:
        raise NoSuchBuild(
            "The package index has no torch.",
            advice="Name another with --index, or in pip's settings.",
        )
    selected = _selected_releases(releases(torch), table, only)
    companions = {name: index.files(name) for name in COMPANIONS}
    index.read(_specimens(torch, selected, {} if only else companions))
    rows: list[Row] = []
    for release in selected:
        rows += _release_rows(index, release, torch, findings, architectures)
        rows += _companion_rows(index, release, torch, companions)
        rows += _torch_index_rows(release, table, findings)
    compare(rows, table, findings)
    unread = {line.split()[0] for line in findings.unread}
    read = [release for release in selected if release in table and release not in unread]
    unproven(table, rows, read, findings, architectures)
    return findings


def _selected_releases(
    on_index: Sequence[str], table: Mapping[str, Any], only: Sequence[str]
) -> list[str]:
    """Releases of the table and newer ones: a person left out one that is older and not in the
    table."""
    newest = max(map(Version, table))
    known = []
    for release in dict.fromkeys([*table, *on_index]):
        if release in table or Version(release) > newest:
            known.append(release)
    missing = [release for release in only if release not in known and release not in on_index]
    if missing:
        raise NoSuchBuild(
            f"torch {', '.join(missing)} is neither on the index nor in the table.",
            advice=f"The index has {', '.join(on_index)}.",
        )
    return sorted(only or known, key=Version)


def _specimens(
    torch: Sequence[File], selected: Iterable[str], companions: Mapping[str, Sequence[File]]
) -> list[File]:
    """Every wheel whose metadata will be needed, so that they are read together."""
    specimens = []
    for release in selected:
        for machine in MACHINES.values():
            specimens.append(specimen(of_machine(torch, release, machine)))
    for files in companions.values():
        for version in {file.base for file in files}:
            specimens.append(specimen(of_machine(files, version, "x86_64")))
    return [file for file in specimens if file]


def _release_rows(
    index: Index, release: str, torch: Sequence[File], findings: Findings, architectures: bool
) -> list[Row]:
    rows: list[Row] = []
    pins_by_platform: dict[str, Pins] = {}
    for platform, machine in MACHINES.items():
        files = of_machine(torch, release, machine)
        file = specimen(files)
        if file is None:
            continue
        content = index.content(file)
        if content is None:
            findings.unread.append(f"{release} {platform}: metadata of {file.name}")
            continue
        platform_pins = pins(content, machine, file.python)
        pins_by_platform[platform] = platform_pins
        rows += default_rows(release, platform, files, platform_pins)
        if architectures and platform_pins.cuda:
            library = index.piece(file, ARCHITECTURES_IN)
            row = None
            if library:
                row = architecture_row(release, platform, build_tag(platform_pins.cuda), library)
            if row:
                rows.append(row)
            else:
                findings.unread.append(
                    f"{release} {platform}: the GPU architectures in {file.name}"
                )
    findings.conflicts += disagreements(release, pins_by_platform)
    if "linux-64" in pins_by_platform:
        rows += _default_build_rows(release, pins_by_platform["linux-64"])
    return rows


def _default_build_rows(release: str, default_pins: Pins) -> list[Row]:
    source = f"PyPI metadata torch=={release}"
    triton = {"requirement": default_pins.triton}
    rows = [Row(path=(release, "triton"), values=triton, source=source)]
    if default_pins.cuda:
        rows += build_rows(release, build_tag(default_pins.cuda), default_pins, source, True)
    return rows


def _companion_rows(
    index: Index, release: str, torch: Sequence[File], companions: Mapping[str, Sequence[File]]
) -> list[Row]:
    chosen: dict[str, tuple[str, bool]] = {}
    for name, files in companions.items():
        best = companion(release, _contents(index, files))
        if best:
            chosen[name] = best
    torch_files = of_machine(torch, release, "x86_64")
    companion_files = []
    for name, (version, pinned) in chosen.items():
        if pinned or name == "torchvision":
            companion_files.append(of_machine(companions[name], version, "x86_64"))
    pythons = None
    if torch_files and companion_files:
        pythons = fewer_pythons(torch_files, companion_files)
    rows = []
    for name, (version, pinned) in chosen.items():
        own_pythons = pythons if name == "torchvision" else None
        rows.append(companion_row(name, release, version, pinned, own_pythons))
    return rows


def _contents(index: Index, files: Sequence[File]) -> Iterator[tuple[str, Content | None]]:
    """Each release of a project with what its wheel says, newest first, read when it is needed."""
    for version in sorted({file.base for file in files}, key=Version, reverse=True):
        file = specimen(of_machine(files, version, "x86_64"))
        yield version, index.content(file) if file else None


def _torch_index_rows(release: str, table: Mapping[str, Any], findings: Findings) -> list[Row]:
    """Builds that only PyTorch's own wheel index has, if the user has named it."""
    rows: list[Row] = []
    for tag, build in table.get(release, {}).get("wheels", {}).items():
        index = None if build["on_pypi"] else torch_index(tag)
        if index is None:
            continue
        file = specimen(of_machine(index.files("torch"), release, "x86_64", tag))
        if file is None:
            continue
        content = index.content(file)
        if content is None:
            findings.unread.append(f"{release} {tag}: metadata of {file.name}")
            continue
        source = f"metadata torch=={release}+{tag} (PyTorch wheel index)"
        rows += build_rows(release, tag, pins(content, "x86_64", file.python), source, False)
    return rows
