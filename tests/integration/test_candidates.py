"""Every combination of the table from the conda sources, on real records: solved, and then checked
by other means than the solver's; or refused, and then proved to be impossible."""

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
from provision.core.platforms import PLATFORMS, Platform
from provision.core.spec_fields import Spec
from provision.core.types import BuildSource, LockedPackage, Resolution
from provision.lockfile.diagnose.unsat_core import DEFAULT_PACKAGES
from provision.resolver import python_versions
from tests.conftest import SHARED_RECORDS
from tests.integration import records
from tests.integration.records import Channels, Impossible, Record
from tests.records import alias

# Solves every build of the catalog against real records.
pytestmark = [pytest.mark.conda, pytest.mark.exhaustive]

SOURCES = ("pytorch", "conda-forge")
SOLVER = conda.Solver(alias(SHARED_RECORDS))


@dataclass(frozen=True, kw_only=True)
class Target:
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
    """A target as a request; proofs, if there are any, that it cannot be; and what the tool made of
    it."""

    target: Target
    resolution: Resolution
    inputs: lockfile.LockInputs
    proofs: tuple[Impossible, ...] = ()
    packages: tuple[LockedPackage, ...] = ()
    refusal: Unsolvable | None = None

    @property
    def machine(self) -> list[Record]:
        return records.virtual(self.inputs.machines[self.target.platform])

    @property
    def channels(self) -> Channels:
        return channels(self.inputs.channels, self.target.platform)

    def mistakes(self) -> list[str]:
        return list(records.mistakes(self.packages, self.inputs.conda, self.machine, self.channels))


def targets() -> Iterator[Target]:
    """Release x source x CUDA or CPU x platform x Python, from the table alone.

    Builds for CPUs are not in the table: those that the matrix derives from it.
    """
    for release in catalog.releases().values():
        for source in SOURCES:
            for build in sources.by_name(source).builds(release):
                for platform in build.platforms:
                    for python in build.for_platform(platform).python or release.python:
                        yield Target(
                            torch=release.version,
                            source=source,
                            cuda=build.cuda,
                            platform=platform,
                            python=python,
                        )
    for candidate in sources.candidates():
        if candidate.build is None and candidate.source.name in SOURCES:
            for platform in candidate.platforms:
                for python in python_versions.supported(candidate, [platform], companions=False):
                    yield Target(
                        torch=candidate.release.version,
                        source=candidate.source.name,
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


def request(target: Target) -> tuple[Resolution, lockfile.LockInputs]:
    requests = Spec(
        name="lab", torch=target.torch, cuda=target.cuda, source=target.source, platforms=(target.platform,), python=target.python,
        companions=target.companions, jupyter=target.jupyter, fast_checkpoints=target.fast_checkpoints,
    )  # fmt: skip
    resolution = resolver.resolve(requests)
    texts = render.render_inputs(resolution)
    return resolution, lockfile.read_inputs(
        texts[render.ENVIRONMENT], texts[render.VIRTUAL_PACKAGES], Path("envs/lab")
    )


def considered(target: Target) -> Case:
    resolution, inputs = request(target)
    case = Case(target=target, resolution=resolution, inputs=inputs)
    return replace(
        case, proofs=tuple(records.impossible(inputs.conda, case.machine, case.channels))
    )


def resolve_case(case: Case) -> Case:
    """The tool's own answer."""
    try:
        return replace(case, packages=lockfile.solve(case.inputs, case.resolution, solver=SOLVER))
    except Unsolvable as refusal:
        return replace(case, refusal=refusal)


def worth_asking(cases: list[Case]) -> list[Case]:
    """All that may be possible.

    Of what is proved to be impossible, one case for each minor release, source and platform: the
    explanation of a refusal takes several solves.
    """
    candidates = {
        (catalog.minor(case.target.torch), case.target.source, case.target.platform): case.target
        for case in cases
        if case.proofs
    }
    return [case for case in cases if not case.proofs or case.target in candidates.values()]


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    """Every target that is worth asking for, without companions, and with them where that was
    solved; each answered. With xxhash where the records have one: they are a slice, and what they
    hold of torch is to be solved."""
    with ThreadPoolExecutor(4) as pool:
        requests = [
            considered(replace(target, fast_checkpoints=has_xxhash(target.platform, target.python)))
            for target in targets()
        ]
        results = list(pool.map(resolve_case, worth_asking(requests)))
        along = [
            considered(replace(case.target, companions=True)) for case in results if case.packages
        ]
        return results + list(pool.map(resolve_case, worth_asking(along)))


def test_solvable_is_solved_and_refused_is_impossible(cases: list[Case]) -> None:
    wrong = [
        f"{case.target}: {case.refusal.details if case.refusal else case.proofs}"
        for case in cases
        if bool(case.packages) is bool(case.proofs)
    ]
    assert not wrong


def test_table_has_every_cuda_build_of_the_records() -> None:
    in_table = set(targets())
    built = {target for target in every_built() if target.cuda}
    assert len(built) > 100
    assert not {str(target) for target in built - in_table}


def test_solvable_from_records_alone(cases: list[Case]) -> None:
    """torch, its Python and its CUDA alone, asked for as the records name them and without our
    pins: what has an answer has one as we ask for it, too; or what we bring along unasked is in the
    way, the refusal names what leaves it out, and that helps."""
    solved = {
        replace(case.target, fast_checkpoints=True): case
        for case in cases
        if not case.target.companions
    }
    with ThreadPoolExecutor(4) as pool:
        built = sorted(every_built(), key=str)
        possible = [target for target, is_so in zip(built, pool.map(solves_alone, built)) if is_so]
        without = [
            target
            for target in possible
            if target in solved
            and solved[target].packages
            and not solved[target].target.fast_checkpoints
        ]
        blocked = [
            target
            for target in possible
            if target in without or target not in solved or not solved[target].packages
        ]
        elsewise = [
            target
            for target, is_so in zip(built, pool.map(solves_with_another_cuda, built))
            if is_so and target not in possible
        ]
    kinds = Counter(
        (target.source, target.platform, "CUDA" if target.cuda else "CPU") for target in possible
    )
    print(f"\n{len(possible)} builds for a Python have an answer alone: {dict(kinds)}")
    for target in blocked:
        case = resolve_case(considered(target))
        at_fault = [pin for pin in case.inputs.conda if not solves_alone(target, pin)]
        print(f"not as we ask for it: {target}: {', '.join(at_fault)}")
        options = {DEFAULT_PACKAGES[conda.spec_name(pin)] for pin in at_fault}
        ways_out = set(re.findall(r"--no-[\w-]+|`\w+: false` in spec\.yml", str(case.refusal)))
        assert options and options <= ways_out, (str(target), str(case.refusal))
        left_out: dict[str, Any] = {
            re.split(r"--no-|[`:]", option)[1].replace("-", "_"): False for option in ways_out
        }
        assert resolve_case(considered(replace(target, **left_out))).packages, target
    for target in elsewise:
        print(f"only with libraries of another CUDA than its own: {target}")
        assert target not in solved or solved[target].refusal, target
    print(
        f"{len(possible) - len(blocked)} of them as we ask for them, {len(blocked)} with options that the refusal names"
    )
    print(f"{len(without)} of these with --no-fast-checkpoints alone")
    assert len(possible) >= 165  # counted on 2026-11-21 with another program


def solves_alone(target: Target, *more: str, exactly: bool = True) -> bool:
    """Whether there is an answer for a build, with what says which CUDA it gets; written without
    looking at the matrix."""
    if target.source == "pytorch":
        build = (
            f"py{target.python}_cuda{target.cuda}*" if target.cuda else f"py{target.python}_cpu*"
        )
        selector = "cudatoolkit" if target.torch.startswith("1.12") else "pytorch::pytorch-cuda"
        extra = f"{selector}={target.cuda}" if target.cuda else "pytorch::cpuonly"
    else:
        build = f"cuda{target.cuda.replace('.', '')}*" if target.cuda else "cpu*"
        extra = f"cuda-version={target.cuda}" if target.cuda else "pytorch"
    torch = f"{'pytorch::' if target.source == 'pytorch' else ''}pytorch={target.torch}={build}"
    machine = {
        "__glibc": "2.28",
        "__linux": "5.10",
        "__unix": "0",
        **({"__cuda": target.cuda} if target.cuda else {}),
    }
    request = conda.SolveRequest(
        specs=(f"python={target.python}", torch, *((extra,) if exactly else ()), *more),
        channels=("pytorch", "nvidia", "conda-forge")
        if target.source == "pytorch"
        else ("conda-forge",),
        virtual_packages=tuple(machine.items()),
        platform=target.platform,
    )
    return SOLVER.is_solvable(request)


def solves_with_another_cuda(target: Target) -> bool:
    """Whether there would be an answer if its CUDA libraries may be of another minor version than
    the build: never what we take."""
    return (
        target.source == "conda-forge"
        and target.cuda is not None
        and solves_alone(target, exactly=False)
    )


def every_built() -> set[Target]:
    return {
        target
        for platform in PLATFORMS
        for source in SOURCES
        for target in built_targets(source, platform)
    }


def built_targets(source: BuildSource, platform: Platform) -> Iterator[Target]:
    """What the names of pytorch's packages say: py3.11_cuda12.1_..., cuda126_mkl_py311_...,
    cuda118py39..., py3.11_cpu_0"""
    first = next(iter(catalog.releases()))
    for record in channels((source,), platform).candidates("pytorch"):
        python = re.search(r"py(3\.\d+)_|py3(\d+)", record.build)
        cuda = re.search(r"cuda(\d+\.\d+)|cuda(\d\d)(\d)", record.build)
        if python and catalog.version_key(record.version) >= catalog.version_key(first):
            yield Target(
                torch=record.version,
                source=source,
                platform=platform,
                cuda=(cuda[1] or f"{cuda[2]}.{cuda[3]}") if cuda else None,
                python=python[1] or f"3.{python[2]}",
            )


def test_all_dependencies_are_satisfied(cases: list[Case]) -> None:
    wrong = {
        str(case.target): case.mistakes()[:3] for case in cases if case.packages and case.mistakes()
    }
    assert not wrong


def test_locked_build_is_the_requested_one(cases: list[Case]) -> None:
    for case in cases:
        target, locked = case.target, {package.name: package for package in case.packages}
        if not locked:
            continue
        torch = locked["pytorch"]
        assert (torch.version, torch.platform) == (target.torch, target.platform), target
        assert locked["python"].version.startswith(f"{target.python}."), target
        if target.source == "pytorch":
            flavor = f"cuda{target.cuda}_" if target.cuda else "cpu_"
            assert torch.build.startswith(f"py{target.python}_{flavor}"), target
            assert "/pytorch/" in torch.url, target
        else:
            assert re.match(
                f"cuda{target.cuda.replace('.', '')}(_|py)" if target.cuda else "cpu_", torch.build
            ), target
        if target.companions:
            assert "torchvision" in locked, target


def test_refusal_names_the_missing_packages(cases: list[Case]) -> None:
    """The solver's words, which -v shows, name a requirement that is proved to have no record, or
    none that can live beside the others."""
    for case in cases:
        if case.refusal:
            culprits = {
                records.name_of(records.split(proof.requirement)[1]) for proof in case.proofs
            }
            assert any(name in case.refusal.details for name in culprits), (
                str(case.target),
                culprits,
                case.refusal.details,
            )


def test_checker_detects_mistakes(cases: list[Case]) -> None:
    case = next(case for case in cases if case.packages and case.target.cuda)
    machine, case_channels = case.machine, case.channels
    locked = {package.name: package for package in case.packages}

    def problem(packages: dict[str, LockedPackage], *, on: list[Record] = machine) -> str:
        return "; ".join(
            records.mistakes(list(packages.values()), case.inputs.conda, on, case_channels)
        )

    assert problem(locked) == ""
    assert "is asked for; there is none" in problem(
        {name: package for name, package in locked.items() if name != "pytorch"}
    )
    assert "needs openssl" in problem(
        {name: package for name, package in locked.items() if name != "openssl"}
    )
    assert "not as its record says" in problem(
        {**locked, "numpy": replace(locked["numpy"], sha256="0" * 64)}
    )
    assert "in no repodata.json" in problem(
        {
            **locked,
            "numpy": replace(locked["numpy"], url="https://example/conda-forge/noarch/x.conda"),
        }
    )
    assert "__glibc" in problem(
        locked, on=[record for record in machine if record.name != "__glibc"]
    )
    other = next(
        record
        for record in case_channels.candidates("python")
        if not record.version.startswith(f"{case.target.python}.")
    )
    swapped = replace(
        locked["python"],
        url=f"https://example/{other.url}",
        version=other.version,
        build=other.build,
        sha256=other.sha256,
        md5=other.md5,
    )
    assert "needs python" in problem(
        {**locked, "python": swapped}
    ) and "is asked for; there is" in problem({**locked, "python": swapped})
    stray = next(record for record in case_channels.candidates("pip"))
    extra = replace(
        locked["python"],
        name="pip",
        url=f"https://example/{stray.url}",
        version=stray.version,
        build=stray.build,
    )
    assert "pip" in locked or "nothing needs pip" in problem({**locked, "pip": extra})


def test_no_impossibility_proof_for_solvable_requests() -> None:
    """What the solver solves has no such proof (above); what is missing one level down has one, and
    names the line."""
    machine = records.virtual(
        [("__glibc", "2.28"), ("__linux", "5.10"), ("__unix", "0"), ("__cuda", "12.6")]
    )
    result = channels(("conda-forge",), "linux-64")
    assert not records.impossible(["python=3.11", "numpy"], machine, result)
    (missing,) = records.impossible(["python=2.0"], machine, result)
    assert missing.is_missing
    assert not records.impossible(["python=3.11", "pytorch=2.6.0=cuda126*"], machine, result)
    nested = {
        proof.requirement: proof.why
        for proof in records.impossible(["python=3.9", "pytorch=2.6.0=cuda126*"], machine, result)
    }
    assert nested.keys() == {"pytorch=2.6.0=cuda126*"}
    assert len(nested["pytorch=2.6.0=cuda126*"]) > 1 and all(
        nested["pytorch=2.6.0=cuda126*"].values()
    )
    assert [
        proof.requirement
        for proof in records.impossible(["pytorch=2.6.0=cuda126*"], machine[:3], result)
    ] == ["pytorch=2.6.0=cuda126*"]
