"""Every combination of the table from the conda sources, on real records: solved, and then checked by other means than the solver's; or
refused, and then proved to be impossible."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from provision import catalog, lockfile, render, resolver, sources
from provision.adapters import conda
from provision.core.errors import Unsolvable
from provision.core.spec_fields import Spec
from provision.core.types import PLATFORMS, BuildSource, LockedPackage, Platform, Resolution
from provision.resolver import python_versions
from tests.conftest import SHARED_RECORDS
from tests.integration import records
from tests.integration.records import Channels, Impossible, Record
from tests.records import alias

pytestmark = pytest.mark.conda

SOURCES = ("pytorch", "conda-forge")
SOLVER = conda.Solver(alias(SHARED_RECORDS))


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One environment that the table says can be asked for."""

    torch: str
    source: BuildSource
    cuda: str | None
    platform: Platform
    python: str
    companions: bool = False
    jupyter: bool = True
    fast_checkpoints: bool = True

    def __str__(self) -> str:
        flavor = f"cuda{self.cuda}" if self.cuda else "cpu"
        return f"{self.source} {self.platform} torch{self.torch} {flavor} py{self.python}{' companions' if self.companions else ''}"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A cell as a request; proofs, if there are any, that it cannot be; and what the tool made of it."""

    cell: Cell
    resolution: Resolution
    inputs: lockfile.LockInputs
    proofs: tuple[Impossible, ...] = ()
    packages: tuple[LockedPackage, ...] = ()
    refusal: Unsolvable | None = None

    @property
    def machine(self) -> list[Record]:
        return records.virtual(self.inputs.machines[self.cell.platform])

    @property
    def channels(self) -> Channels:
        return channels(self.inputs.channels, self.cell.platform)

    def mistakes(self) -> list[str]:
        return list(records.mistakes(self.packages, self.inputs.conda, self.machine, self.channels))


def cells() -> Iterator[Cell]:
    """Release x source x CUDA or CPU x platform x Python, from the table alone. Builds for CPUs are not in the table: those that the
    matrix derives from it."""
    for release in catalog.releases().values():
        for source in SOURCES:
            for build in sources.by_name(source).builds(release):
                for platform in build.platforms:
                    for python in build.for_platform(platform).python or release.python:
                        yield Cell(
                            torch=release.version,
                            source=source,
                            cuda=build.cuda,
                            platform=platform,
                            python=python,
                        )
    for known in sources.candidates():
        if known.build is None and known.source.name in SOURCES:
            for platform in known.platforms:
                for python in python_versions.supported(known, [platform], companions=False):
                    yield Cell(
                        torch=known.release.version,
                        source=known.source.name,
                        cuda=None,
                        platform=platform,
                        python=python,
                    )


@functools.cache
def has_xxhash(platform: Platform, python: str) -> bool:
    builds = {
        record.build for record in channels(("conda-forge",), platform).candidates("python-xxhash")
    }
    return any(build.startswith(f"py{python.replace('.', '')}h") for build in builds)


@functools.cache
def channels(names: tuple[str, ...], platform: Platform) -> Channels:
    return Channels(SHARED_RECORDS, names, platform)


def request(cell: Cell) -> tuple[Resolution, lockfile.LockInputs]:
    asked = Spec(
        name="lab", torch=cell.torch, cuda=cell.cuda, source=cell.source, platforms=(cell.platform,), python=cell.python,
        companions=cell.companions, jupyter=cell.jupyter, fast_checkpoints=cell.fast_checkpoints,
    )  # fmt: skip
    resolution = resolver.resolve(asked)
    texts = render.render_inputs(resolution)
    return resolution, lockfile.read_inputs(
        texts[render.ENVIRONMENT], texts[render.VIRTUAL_PACKAGES], Path("envs/lab")
    )


def considered(cell: Cell) -> Case:
    resolution, inputs = request(cell)
    case = Case(cell=cell, resolution=resolution, inputs=inputs)
    return replace(
        case, proofs=tuple(records.impossible(inputs.conda, case.machine, case.channels))
    )


def answered(case: Case) -> Case:
    """The tool's own answer."""
    try:
        return replace(case, packages=lockfile.solve(case.inputs, case.resolution, solver=SOLVER))
    except Unsolvable as refusal:
        return replace(case, refusal=refusal)


def worth_asking(cases: list[Case]) -> list[Case]:
    """All that may be possible. Of what is proved to be impossible, one case for each minor release, source and platform: the
    explanation of a refusal takes several solves."""
    one = {
        (catalog.minor(case.cell.torch), case.cell.source, case.cell.platform): case.cell
        for case in cases
        if case.proofs
    }
    return [case for case in cases if not case.proofs or case.cell in one.values()]


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    """Every cell that is worth asking for, without companions, and with them where that was solved; each answered. With xxhash where
    the records have one: they are a slice, and what they hold of torch is to be solved."""
    with ThreadPoolExecutor(4) as pool:
        asked = [
            considered(replace(cell, fast_checkpoints=has_xxhash(cell.platform, cell.python)))
            for cell in cells()
        ]
        alone = list(pool.map(answered, worth_asking(asked)))
        along = [considered(replace(case.cell, companions=True)) for case in alone if case.packages]
        return alone + list(pool.map(answered, worth_asking(along)))


def test_what_can_be_solved_is_solved_and_what_is_refused_is_impossible(cases: list[Case]) -> None:
    wrong = [
        f"{case.cell}: {case.refusal.details if case.refusal else case.proofs}"
        for case in cases
        if bool(case.packages) is bool(case.proofs)
    ]
    assert not wrong


def test_every_cuda_build_in_the_records_is_a_cell_of_the_table() -> None:
    known = set(cells())
    built = {cell for cell in every_built() if cell.cuda}
    assert len(built) > 100
    assert not {str(cell) for cell in built - known}


def test_what_the_records_can_solve_alone_is_solved(cases: list[Case]) -> None:
    """torch, its Python and its CUDA alone, asked for as the records name them and without our pins: what has an answer has one as we
    ask for it, too; or what we bring along unasked is in the way, the refusal names what leaves it out, and that helps."""
    alone = {
        replace(case.cell, fast_checkpoints=True): case
        for case in cases
        if not case.cell.companions
    }
    with ThreadPoolExecutor(4) as pool:
        built = sorted(every_built(), key=str)
        possible = [cell for cell, is_so in zip(built, pool.map(solves_alone, built)) if is_so]
        without = [
            cell
            for cell in possible
            if cell in alone and alone[cell].packages and not alone[cell].cell.fast_checkpoints
        ]
        blocked = [
            cell
            for cell in possible
            if cell in without or cell not in alone or not alone[cell].packages
        ]
        elsewise = [
            cell
            for cell, is_so in zip(built, pool.map(solves_with_another_cuda, built))
            if is_so and cell not in possible
        ]
    kinds = Counter(
        (cell.source, cell.platform, "CUDA" if cell.cuda else "CPU") for cell in possible
    )
    print(f"\n{len(possible)} builds for a Python have an answer alone: {dict(kinds)}")
    for cell in blocked:
        case = answered(considered(cell))
        at_fault = [pin for pin in case.inputs.conda if not solves_alone(cell, pin)]
        print(f"not as we ask for it: {cell}: {', '.join(at_fault)}")
        way_out = dict(re.findall(r"--no-([\w-]+) \(without ([^)]*)\)", str(case.refusal)))
        spared = " and ".join(way_out.values())
        assert at_fault and all(
            conda.spec_name(pin).removeprefix("python-") in spared for pin in at_fault
        ), (str(cell), str(case.refusal))
        left_out: dict[str, Any] = {option.replace("-", "_"): False for option in way_out}
        assert answered(considered(replace(cell, **left_out))).packages, cell
    for cell in elsewise:
        print(f"only with libraries of another CUDA than its own: {cell}")
        assert cell not in alone or alone[cell].refusal, cell
    print(
        f"{len(possible) - len(blocked)} of them as we ask for them, {len(blocked)} with options that the refusal names"
    )
    print(f"{len(without)} of these with --no-fast-checkpoints alone")
    assert len(possible) >= 165  # counted on 2026-11-21 with another program


def solves_alone(cell: Cell, *more: str, exactly: bool = True) -> bool:
    """Whether there is an answer for a build, with what says which CUDA it gets; written without looking at the matrix."""
    if cell.source == "pytorch":
        build = f"py{cell.python}_cuda{cell.cuda}*" if cell.cuda else f"py{cell.python}_cpu*"
        selector = "cudatoolkit" if cell.torch.startswith("1.12") else "pytorch::pytorch-cuda"
        extra = f"{selector}={cell.cuda}" if cell.cuda else "pytorch::cpuonly"
    else:
        build = f"cuda{cell.cuda.replace('.', '')}*" if cell.cuda else "cpu*"
        extra = f"cuda-version={cell.cuda}" if cell.cuda else "pytorch"
    torch = f"{'pytorch::' if cell.source == 'pytorch' else ''}pytorch={cell.torch}={build}"
    machine = {
        "__glibc": "2.28",
        "__linux": "5.10",
        "__unix": "0",
        **({"__cuda": cell.cuda} if cell.cuda else {}),
    }
    request = conda.SolveRequest(
        specs=(f"python={cell.python}", torch, *((extra,) if exactly else ()), *more),
        channels=("pytorch", "nvidia", "conda-forge")
        if cell.source == "pytorch"
        else ("conda-forge",),
        virtual_packages=tuple(machine.items()),
        platform=cell.platform,
    )
    return SOLVER.is_solvable(request)


def solves_with_another_cuda(cell: Cell) -> bool:
    """Whether there would be an answer if its CUDA libraries may be of another minor version than the build: never what we take."""
    return (
        cell.source == "conda-forge" and cell.cuda is not None and solves_alone(cell, exactly=False)
    )


def every_built() -> set[Cell]:
    return {
        cell
        for platform in PLATFORMS
        for source in SOURCES
        for cell in built_cells(source, platform)
    }


def built_cells(source: BuildSource, platform: Platform) -> Iterator[Cell]:
    """What the names of pytorch's packages say: py3.11_cuda12.1_..., cuda126_mkl_py311_..., cuda118py39..., py3.11_cpu_0"""
    first = next(iter(catalog.releases()))
    for record in channels((source,), platform).candidates("pytorch"):
        python = re.search(r"py(3\.\d+)_|py3(\d+)", record.build)
        cuda = re.search(r"cuda(\d+\.\d+)|cuda(\d\d)(\d)", record.build)
        if python and catalog.version_key(record.version) >= catalog.version_key(first):
            yield Cell(
                torch=record.version,
                source=source,
                platform=platform,
                cuda=(cuda[1] or f"{cuda[2]}.{cuda[3]}") if cuda else None,
                python=python[1] or f"3.{python[2]}",
            )


def test_every_line_of_every_record_is_satisfied(cases: list[Case]) -> None:
    wrong = {
        str(case.cell): case.mistakes()[:3] for case in cases if case.packages and case.mistakes()
    }
    assert not wrong


def test_it_is_the_build_that_was_asked_for(cases: list[Case]) -> None:
    for case in cases:
        cell, locked = case.cell, {package.name: package for package in case.packages}
        if not locked:
            continue
        torch = locked["pytorch"]
        assert (torch.version, torch.platform) == (cell.torch, cell.platform), cell
        assert locked["python"].version.startswith(f"{cell.python}."), cell
        if cell.source == "pytorch":
            flavor = f"cuda{cell.cuda}_" if cell.cuda else "cpu_"
            assert torch.build.startswith(f"py{cell.python}_{flavor}"), cell
            assert "/pytorch/" in torch.url, cell
        else:
            assert re.match(
                f"cuda{cell.cuda.replace('.', '')}(_|py)" if cell.cuda else "cpu_", torch.build
            ), cell
        if cell.companions:
            assert "torchvision" in locked, cell


def test_a_refusal_names_what_is_missing(cases: list[Case]) -> None:
    """The solver's words, which -v shows, name a requirement that is proved to have no record, or none that can live beside the others."""
    for case in cases:
        if case.refusal:
            culprits = {
                records.name_of(records.split(proof.requirement)[1]) for proof in case.proofs
            }
            assert any(name in case.refusal.details for name in culprits), (
                str(case.cell),
                culprits,
                case.refusal.details,
            )


def test_the_check_sees_what_is_wrong(cases: list[Case]) -> None:
    case = next(case for case in cases if case.packages and case.cell.cuda)
    machine, found = case.machine, case.channels
    locked = {package.name: package for package in case.packages}

    def said(packages: dict[str, LockedPackage], *, on: list[Record] = machine) -> str:
        return "; ".join(records.mistakes(list(packages.values()), case.inputs.conda, on, found))

    assert said(locked) == ""
    assert "is asked for; there is none" in said(
        {name: package for name, package in locked.items() if name != "pytorch"}
    )
    assert "needs openssl" in said(
        {name: package for name, package in locked.items() if name != "openssl"}
    )
    assert "not as its record says" in said(
        {**locked, "numpy": replace(locked["numpy"], sha256="0" * 64)}
    )
    assert "in no repodata.json" in said(
        {
            **locked,
            "numpy": replace(locked["numpy"], url="https://example/conda-forge/noarch/x.conda"),
        }
    )
    assert "__glibc" in said(locked, on=[record for record in machine if record.name != "__glibc"])
    other = next(
        record
        for record in found.candidates("python")
        if not record.version.startswith(f"{case.cell.python}.")
    )
    swapped = replace(
        locked["python"],
        url=f"https://example/{other.url}",
        version=other.version,
        build=other.build,
        sha256=other.sha256,
        md5=other.md5,
    )
    assert "needs python" in said(
        {**locked, "python": swapped}
    ) and "is asked for; there is" in said({**locked, "python": swapped})
    stray = next(record for record in found.candidates("pip"))
    extra = replace(
        locked["python"],
        name="pip",
        url=f"https://example/{stray.url}",
        version=stray.version,
        build=stray.build,
    )
    assert "pip" in locked or "nothing needs pip" in said({**locked, "pip": extra})


def test_the_proof_of_impossibility_is_none_for_what_is_possible() -> None:
    """What the solver solves has no such proof (above); what is missing one level down has one, and names the line."""
    machine = records.virtual(
        [("__glibc", "2.28"), ("__linux", "5.10"), ("__unix", "0"), ("__cuda", "12.6")]
    )
    found = channels(("conda-forge",), "linux-64")
    assert not records.impossible(["python=3.11", "numpy"], machine, found)
    (missing,) = records.impossible(["python=2.0"], machine, found)
    assert missing.is_missing
    assert not records.impossible(["python=3.11", "pytorch=2.6.0=cuda126*"], machine, found)
    nested = {
        proof.requirement: proof.why
        for proof in records.impossible(["python=3.9", "pytorch=2.6.0=cuda126*"], machine, found)
    }
    assert nested.keys() == {"pytorch=2.6.0=cuda126*"}
    assert len(nested["pytorch=2.6.0=cuda126*"]) > 1 and all(
        nested["pytorch=2.6.0=cuda126*"].values()
    )
    assert [
        proof.requirement
        for proof in records.impossible(["pytorch=2.6.0=cuda126*"], machine[:3], found)
    ] == ["pytorch=2.6.0=cuda126*"]
