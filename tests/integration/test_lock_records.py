"""Locks of every release from the real package index and real conda records: solved, guarded, parsed by conda-lock."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision import compat, conda
from provision.errors import CheckFailed, Unsolvable
from provision.model import LockedPackage, Resolution
from provision.pipeline import lock, matrix, render, spec
from tests.conftest import SHARED_RECORDS

pytestmark = [pytest.mark.index, pytest.mark.conda]

RECORDS = conda.Alias(alias=SHARED_RECORDS.as_uri())
# PyPI builds of the table from 1.13 on; 1.12 has one for CUDA 10.2 only and Python up to 3.10.
RELEASES = list(compat.releases().values())


def solve(**asked: object) -> tuple[Resolution, tuple[LockedPackage, ...]]:
    wanted = {"channels": (SHARED_RECORDS.joinpath("conda-forge").as_uri(),), **asked}
    resolution = matrix.resolve(spec.combine({}, wanted, name=""))
    return resolution, lock.solve(inputs(resolution), resolution)


def inputs(resolution: Resolution) -> lock.Inputs:
    texts = render.render_inputs(resolution)
    return lock.inputs(texts[render.ENVIRONMENT], texts[render.VIRTUAL_PACKAGES], Path("envs/lab"))


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.version)
def test_every_index_build_locks(release: compat.Release) -> None:
    build = next(build for build in release.wheels if build.on_pypi)
    resolution, packages = solve(torch=release.version, cuda=build.cuda)
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
    resolution = matrix.resolve(spec.combine({}, asked, name=""))
    packages = lock.solve(inputs(resolution), resolution, solver=conda.Solver(RECORDS))
    assert next(package.build for package in packages if package.name == "pytorch").startswith(build)


def test_the_guard_catches_the_trap_in_real_records() -> None:
    """pytorch 2.1.0 beside pytorch-cuda 12.4 solves to the CPU build; the records hold that trap."""
    request = conda.Request(
        specs=("python=3.11", "pytorch==2.1.0", "pytorch-cuda=12.4"),
        channels=("pytorch", "nvidia", "conda-forge"),
        virtual_packages=(("__glibc", "2.28"),),
    )
    packages = conda.solve(request, RECORDS)
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
