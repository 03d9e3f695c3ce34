"""Locks of every release from the real package index and real conda records: solved, guarded, parsed by conda-lock."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from provision import compat, conda
from provision.errors import CheckFailed, ProvisionError, Unsolvable
from provision.model import LockedPackage, Platform, Resolution
from provision.pipeline import lock, matrix, render, spec
from tests.conftest import SHARED_RECORDS

pytestmark = [pytest.mark.index, pytest.mark.conda]

RECORDS = conda.Solver(conda.Alias(alias=SHARED_RECORDS.as_uri()))  # one for all: what one test made it read serves the next
Solved = tuple[Resolution, tuple[LockedPackage, ...]]
BOTH: tuple[Platform, ...] = ("linux-64", "linux-aarch64")
# PyPI builds of the table from 1.13 on; 1.12 has one for CUDA 10.2 only and Python up to 3.10.
RELEASES = list(compat.releases().values())


def resolve(*, platforms: tuple[Platform, ...] = ("linux-64",), as_of: str | None = None, **asked: object) -> Resolution:
    resolution = matrix.resolve(spec.combine({}, asked, name=""))
    return dataclasses.replace(resolution, platforms=platforms, spec=dataclasses.replace(resolution.spec, as_of=as_of))


def inputs(resolution: Resolution) -> lock.Inputs:
    texts = render.render_inputs(resolution)
    return lock.inputs(texts[render.ENVIRONMENT], texts[render.VIRTUAL_PACKAGES], Path("envs/lab"), as_of=resolution.spec.as_of)


def solve(**asked: object) -> Solved:
    resolution = resolve(**asked)  # type: ignore[arg-type]
    return resolution, lock.solve(inputs(resolution), resolution, solver=RECORDS)


def index_build(release: compat.Release) -> compat.Build:
    return next(build for build in release.wheels if build.on_pypi)


@pytest.fixture(scope="module")
def every_index_build() -> Iterator[dict[str, Future[Solved]]]:
    """The locks of all releases, several at a time: most of a lock's time is spent waiting for the index."""
    with ThreadPoolExecutor(4) as pool:
        yield {release.version: pool.submit(solve, torch=release.version, cuda=index_build(release).cuda) for release in RELEASES}


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.version)
def test_every_index_build_locks(release: compat.Release, every_index_build: dict[str, Future[Solved]]) -> None:
    build = index_build(release)
    resolution, packages = every_index_build[release.version].result()
    locked = {package.name: package for package in packages}
    assert locked["torch"].version == release.version
    assert locked["python"].version.startswith(resolution.python + ".")
    nccl = [package.version for name, package in locked.items() if name.startswith("nvidia-nccl-cu")]
    assert nccl == ([resolution.nccl] if build.nccl and build.nccl_is_package else [])
    for package in packages:
        assert len(package.sha256) == 64


@pytest.mark.parametrize(
    "asked,build",
    [
        ({"torch": "2.3", "cuda": "12.1", "source": "pytorch", "companions": False}, "py3.11_cuda12.1"),
        ({"torch": "2.6", "cuda": "12.6"}, "cuda126"),
    ],
    ids=["pytorch", "conda-forge"],
)
def test_the_channels_lock_the_cuda_build(asked: dict[str, object], build: str) -> None:
    _, packages = solve(**asked)
    assert next(package.build for package in packages if package.name == "pytorch").startswith(build)


def test_the_guard_catches_the_trap_in_real_records() -> None:
    """pytorch 2.1.0 beside pytorch-cuda 12.4 solves to the CPU build; the records hold that trap."""
    request = conda.Request(
        specs=("python=3.11", "pytorch==2.1.0", "pytorch-cuda=12.4"),
        channels=("pytorch", "nvidia", "conda-forge"),
        virtual_packages=(("__glibc", "2.28"),),
    )
    packages = RECORDS.solve(request)
    resolution = matrix.resolve(spec.combine({}, {"torch": "2.1.0", "cuda": "12.1", "source": "pytorch"}, name=""))
    with pytest.raises(CheckFailed, match=r"CUDA 12\.1 was asked for.*cpu"):
        lock.guard(packages, resolution)


def test_a_package_that_both_managers_have_is_condas() -> None:
    _, packages = solve(torch="2.3", cuda="12.1", conda=("numpy=1.26.*",))
    assert [package.manager for package in packages if package.name == "numpy"] == ["conda"]


def test_what_cannot_be_solved_says_so() -> None:
    with pytest.raises(Unsolvable, match="no-such-package"):
        solve(torch="2.3", cuda="12.1", conda=("no-such-package",))


def test_locking_twice_gives_the_same_bytes() -> None:
    resolution, packages = solve(torch="2.3", cuda="12.1")
    texts = [lock.text(inputs(resolution), packages, python_from="channel")]
    resolution, packages = solve(torch="2.3", cuda="12.1")
    texts.append(lock.text(inputs(resolution), packages, python_from="channel"))
    assert texts[0] == texts[1]
