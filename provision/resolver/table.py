"""The cells of the table, and whether each fits a query: yes, no, or not known."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from provision import catalog
from provision.catalog import Build, Release, version_key
from provision.core.errors import NoSuchBuild
from provision.core.types import BuildSource, Platform
from provision.resolver.query import Query

SOURCES: tuple[BuildSource, ...] = ("wheels", "pytorch", "conda-forge")
PARTS = ("cuda", "python", "nccl", "driver", "gpu", "glibc")
# Option -> field of the query, for what to give up when nothing fits.
GIVEN_UP = {part: part for part in PARTS} | {
    "gpu": "gpus",
    "platform": "platforms",
    "source": "sources",
}


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """One build on one platform. None: not known."""

    torch: str
    source: BuildSource
    cuda: str
    platform: Platform
    index_default: bool  # what a package index serves as plain torch==V
    tag: str
    python: tuple[str, ...] | None
    python_seen: tuple[str, ...]
    free_threaded: tuple[str, ...]  # 3.13t
    nccl: str | None
    nccl_at_least: str | None  # conda-forge, where the solver chooses
    nccl_is_package: bool
    cudnn: str | None
    cudnn_at_least: str | None
    triton: str | None
    driver: str | None  # the oldest that runs it
    architectures: tuple[str, ...] | None
    ptx: bool | None
    glibc: str | None
    torchvision: str | None
    torchaudio: str | None
    from_source: str  # where the build is known from
    through_ptx: bool = False  # it reaches a GPU of the query by compiling PTX only
    not_known: tuple[str, ...] = ()  # parts of the query that no fact answers for it


@dataclass(frozen=True, kw_only=True)
class Table:
    """The cells that fit, newest torch first; how many more might, by the part of the query that is not known."""

    cells: tuple[TableRow, ...]
    hidden: int
    hidden_by: dict[str, int]
    hints: tuple[str, ...] = ()  # what to ask instead, so that more is known


def build_table(query: Query) -> Table:
    """All cells that fit. Raises NoSuchBuild if there is none, and says which part of the query to give up."""
    judged = list(_judged(query))
    shown = tuple(row for row in judged if query.unknown or not row.not_known)
    hidden = [] if query.unknown else [row for row in judged if row.not_known]
    hints = _hints(query, judged)
    if not shown:
        raise _nothing(query, hidden, hints)
    hidden_by = dict(Counter(part for row in hidden for part in row.not_known))
    return Table(cells=shown, hidden=len(hidden), hidden_by=hidden_by, hints=hints)


def _judged(query: Query) -> Iterator[TableRow]:
    """Cells that fit or might."""
    for release, source, build, platform in _builds(query):
        there = build.on(platform)
        answers = {part: _answer(part, query, there, platform) for part in PARTS}
        if "no" not in answers.values():
            unknown = tuple(part for part in PARTS if answers[part] == "unknown")
            row = _cell(release, source, there, platform)
            yield dataclasses.replace(row, through_ptx=answers["gpu"] == "ptx", not_known=unknown)


def _builds(query: Query) -> Iterator[tuple[Release, BuildSource, Build, Platform]]:
    for release in reversed(query.releases):
        for source in SOURCES:
            if query.sources and source not in query.sources:
                continue
            for build in sorted(
                release.builds(source), key=lambda build: version_key(build.cuda), reverse=True
            ):
                for platform in build.platforms:
                    if not query.platforms or platform in query.platforms:
                        yield release, source, build, platform


def _answer(part: str, query: Query, build: Build, platform: Platform) -> str:
    """yes, ptx, no or unknown. What is not asked is met."""
    if part == "cuda" and query.cuda:
        return "yes" if _means(query.cuda, build.cuda) else "no"
    if part == "python" and query.python:
        return _has_python(build, query.python)
    if part == "nccl" and query.nccl:
        return _has_nccl(build, query.nccl)
    if part == "driver" and query.driver:
        return catalog.runs_on_driver(build.cuda, query.driver, platform)
    if part == "gpu" and query.gpus:
        return _reaches_all(build, query)
    if part == "glibc" and query.glibc:
        return catalog.runs_on_machine(build, query.glibc)
    return "yes"


def _means(asked: str, version: str) -> bool:
    """2.27 means every 2.27.x."""
    return version == asked or version.startswith(f"{asked}.")


def _has_python(build: Build, python: str) -> str:
    if python in (*(build.python or build.python_seen), *build.free_threaded):
        return "yes"
    return "unknown" if build.python is None else "no"


def _has_nccl(build: Build, nccl: str) -> str:
    if build.nccl:
        return "yes" if _means(nccl, build.nccl) else "no"
    if not (build.nccl_is_package and build.specs):  # not one that conda's solver chooses
        return "unknown"
    found = [
        one
        for one in catalog.nccl_on_conda_forge().values()
        if _means(nccl, one.version) and one.runs_with(build.cuda)
    ]
    if build.nccl_floor is None:
        return "unknown" if found else "no"
    return (
        "yes"
        if any(version_key(one.version) >= version_key(build.nccl_floor) for one in found)
        else "no"
    )


def _reaches_all(build: Build, query: Query) -> str:
    reaches = [catalog.runs_on_gpu(build, gpu, query.driver) for gpu in query.gpus]
    return next((worst for worst in ("no", "unknown", "ptx") if worst in reaches), "yes")


def _cell(release: Release, source: BuildSource, build: Build, platform: Platform) -> TableRow:
    toolkit = catalog.toolkits().get(build.cuda)
    return TableRow(
        torch=release.version,
        source=source,
        cuda=build.cuda,
        platform=platform,
        index_default=build.on_pypi,
        tag=build.tag,
        python=build.python,
        python_seen=build.python_seen,
        free_threaded=build.free_threaded,
        nccl=build.nccl,
        nccl_at_least=build.nccl_floor,
        nccl_is_package=build.nccl_is_package,
        cudnn=build.cudnn,
        cudnn_at_least=build.cudnn_floor,
        triton=build.triton,
        driver=toolkit.driver_floor if toolkit and platform in toolkit.driver_platforms else None,
        architectures=build.architectures,
        ptx=build.ptx,
        glibc=build.glibc,
        torchvision=release.torchvision,
        torchaudio=release.companion_audio,
        from_source=build.source,
    )


def _hints(query: Query, judged: Sequence[TableRow]) -> tuple[str, ...]:
    """A bare branch leaves open whether its first drivers or its last are meant."""
    floors = {row.driver for row in judged if "driver" in row.not_known and row.driver}
    return tuple(
        f"Driver {query.driver} may be older than {floor}: give the whole version to know."
        for floor in sorted(floors, key=version_key)
    )


def _nothing(query: Query, hidden: Sequence[TableRow], hints: Sequence[str]) -> NoSuchBuild:
    """What to give up: each part of the query by itself, where that alone is enough."""
    advice = []
    if hidden:
        parts = ", ".join(sorted({part for row in hidden for part in row.not_known}))
        advice += [f"{len(hidden)} might ({parts} not known): show them with --unknown.", *hints]
    for option, field in GIVEN_UP.items():
        if getattr(query, field):
            emptied: dict[str, Any] = {
                field: () if isinstance(getattr(query, field), tuple) else None
            }
            fitting = sum(
                not row.not_known for row in _judged(dataclasses.replace(query, **emptied))
            )
            advice += [f"Without --{option}, {fitting} do."] if fitting else []
    advice = advice or ["Nothing less does either."]
    advice += [
        f"{_named(gpu)}, {compiled}."
        for gpu in query.gpus
        if query.cuda and (compiled := catalog.cuda_range_text(gpu))
    ]
    return NoSuchBuild(
        "No build in the table is known to fit all of that.", advice=" ".join(advice)
    )


def _named(gpu: catalog.Gpu) -> str:
    return gpu.name if gpu.name == gpu.architecture else f"{gpu.name} is {gpu.architecture}"
