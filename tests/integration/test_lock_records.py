"""Locks of every release from the real package index and real conda records: solved, guarded,
parsed by conda-lock."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from provision import catalog, lockfile, render, resolver
from provision.adapters import conda
from provision.core import process
from provision.core.errors import CheckFailed, InvalidSpec, Unsolvable
from provision.core.platforms import Platform
from provision.core.types import Lock, LockedPackage, Resolution
from provision.lockfile.diagnose import conda as diagnose_conda
from provision.lockfile.diagnose import uv as diagnose_uv
from provision.resolver import spec
from tests.conftest import SHARED_RECORDS
from tests.integration.conftest import Home, make_home
from tests.records import alias
from tests.small import lock_text

pytestmark = [pytest.mark.index, pytest.mark.conda]

RECORDS = conda.Solver(
    alias(SHARED_RECORDS)
)  # one for all: what one test made it read serves the next
Solved = tuple[Resolution, tuple[LockedPackage, ...]]
BOTH: tuple[Platform, ...] = ("linux-64", "linux-aarch64")
# PyPI builds of the table from 1.13 on; 1.12 has one for CUDA 10.2 only and Python up to 3.10.
RELEASES = list(catalog.releases().values())


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes longer to find a cause."""
    monkeypatch.setattr(diagnose_conda, "BUDGET_S", 600.0)
    monkeypatch.setattr(diagnose_uv, "BUDGET_S", 600.0)


def resolve(**options: object) -> Resolution:
    return resolver.resolve(spec.combine({}, options, name=""))


def inputs(resolution: Resolution) -> lockfile.LockInputs:
    texts = render.render_inputs(resolution)
    return lockfile.read_inputs(
        texts[render.ENVIRONMENT],
        texts[render.VIRTUAL_PACKAGES],
        Path("envs/lab"),
        as_of=resolution.spec.as_of,
    )


def solve(**options: object) -> Solved:
    resolution = resolve(**options)
    packages = lockfile.solve(inputs(resolution), resolution, solver=RECORDS)
    # conda's pip brings setuptools, which torch's wheels limit: what a build asks of the lock.
    lockfile.require_complete(lock_of(packages), resolution.pins)
    return resolution, packages


def lock_of(packages: tuple[LockedPackage, ...]) -> Lock:
    return Lock(
        path=Path("conda-lock.yml"),
        sha256="",
        inputs_sha256="",
        content_hash="",
        packages=packages,
        python_from="channel",
        portable=True,
    )


def index_build(release: catalog.Release) -> catalog.Build:
    return next(build for build in release.wheels if build.on_pypi)


def kind(release: catalog.Release) -> tuple[bool, str]:
    """What tells the index builds of releases apart: where NCCL is, and CUDA's major version."""
    build = index_build(release)
    return build.nccl_is_package, str(build.cuda).partition(".")[0]


NEWEST_OF_KIND = {kind(release): release.version for release in RELEASES}
RELEASE_CASES = [
    release
    if release.version in NEWEST_OF_KIND.values()
    else pytest.param(release, marks=pytest.mark.exhaustive)
    for release in RELEASES
]


@pytest.fixture(scope="module", autouse=True)
def every_index_build(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Solved]]]:
    """The locks of the releases that this run tests, several at a time and while other tests run:
    they mostly wait for the index."""
    name = test_every_index_build_locks.__name__
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    releases: list[Any] = [
        item.callspec.params["release"] for item in items if item.originalname == name
    ]
    pool = ThreadPoolExecutor(4)
    yield {
        release.version: pool.submit(solve, torch=release.version, cuda=index_build(release).cuda)
        for release in releases
    }
    pool.shutdown(
        cancel_futures=True
    )  # where only some tests are run, what nobody waits for is not begun


@pytest.mark.parametrize(
    "options,build",
    [
        (
            {"torch": "2.3", "cuda": "12.1", "source": "pytorch", "companions": False},
            "py3.11_cuda12.1",
        ),
        ({"torch": "2.6", "cuda": "12.6"}, "cuda126"),
    ],
    ids=["pytorch", "conda-forge"],
)
def test_channels_lock_the_cuda_build(options: dict[str, object], build: str) -> None:
    _, packages = solve(**options)
    assert next(package.build for package in packages if package.name == "pytorch").startswith(
        build
    )


@pytest.mark.exhaustive
def test_cuda_libraries_of_a_later_minor_version_are_locked_beside_a_build() -> None:
    options: dict[str, object] = {"torch": "2.6", "cuda": "12.6", "source": "conda-forge"}
    _, packages = solve(**options, conda=["cuda-version=12.8"])
    versions = {package.name: (package.version, package.build) for package in packages}
    assert versions["cuda-version"][0] == "12.8"
    assert versions["cuda-cudart"][0].startswith("12.8.")
    for name in ("pytorch", "libtorch", "torchvision"):
        assert versions[name][1].startswith("cuda126")
    with pytest.raises(Unsolvable, match=r"cuda-version >=12\.6,<13, for which no candidates"):
        solve(**options, conda=["cuda-version=12.4"])


def test_pytorch_channel_gets_libraries_of_its_own_cuda_and_mkl() -> None:
    """pytorch-cuda leaves libcurand, libcufile and cuda-opencl open: they came from CUDA 12.9."""
    _, packages = solve(torch="2.3", cuda="12.1", source="pytorch", companions=False)
    versions = {package.name: package.version for package in packages}
    builds = {package.name: package.build for package in packages}
    assert builds["libblas"].endswith("_mkl")
    # 10.3.10 is of CUDA 12.9, 10.3.5 of 12.4; the records for development have none of 12.1.
    assert versions["libcurand"].startswith("10.3.5.")
    # CUDA 12.4 has one library more; only those of 12.5 and later require cuda-version.
    _, packages = solve(torch="2.5", cuda="12.4", source="pytorch", companions=False)
    assert "cuda-version" not in {package.name for package in packages}


STRICT_SOLVE = """
import asyncio, json, os, sys
import rattler
from rattler.package.build_string import BuildString

folder, specs = sys.argv[1], json.loads(sys.argv[2])
records = [
    rattler.SparseRepoData(rattler.Channel(channel), subdir, f"{folder}/{channel}/{subdir}/repodata.json")
    for channel in ("pytorch", "nvidia", "conda-forge")
    for subdir in ("linux-64", "noarch")
]
machine = [
    rattler.GenericVirtualPackage(rattler.PackageName(name), rattler.Version(version), BuildString("0"))
    for name, version in (("__cuda", "12.1"), ("__glibc", "2.31"), ("__linux", "5.10"), ("__unix", "0"))
]
answer = asyncio.run(
    rattler.solve_with_sparse_repodata(
        [rattler.MatchSpec(spec) for spec in specs],
        records,
        virtual_packages=machine,
        channel_priority=rattler.ChannelPriority.Strict,
    )
)
print(json.dumps({record.name.normalized: str(record.version) for record in answer}), flush=True)
os._exit(0)  # rattler may crash while the interpreter shuts down
"""


@pytest.mark.exhaustive
def test_environment_file_of_the_pytorch_channel_is_solved_with_strict_priority() -> None:
    """As conda has it: a package's records in lower channels count for nothing. The nvidia channel
    has cuda-version for 12.5 and later only, so nothing may require it."""
    resolution = resolve(torch="2.3", cuda="12.1", source="pytorch", companions=False)
    document = yaml.safe_load(render.render_inputs(resolution)[render.ENVIRONMENT])
    specs = [spec for spec in document["dependencies"] if isinstance(spec, str)]
    command = [sys.executable, "-c", STRICT_SOLVE, str(SHARED_RECORDS), json.dumps(specs)]
    completed = subprocess.run(command, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stderr
    versions = json.loads(completed.stdout)
    assert versions["libcurand"].startswith("10.3.5.")


def edited(resolution: Resolution, changes: dict[str, str]) -> lockfile.LockInputs:
    """The inputs of a resolution after somebody wrote other requirements into its files."""
    texts = render.render_inputs(resolution)
    for before, after in changes.items():
        assert any(before in text for text in texts.values()), before
        texts = {name: text.replace(before, after) for name, text in texts.items()}
    return lockfile.read_inputs(
        texts[render.ENVIRONMENT], texts[render.VIRTUAL_PACKAGES], Path("envs/lab")
    )


@pytest.mark.parametrize(
    "options,changes,message",
    [
        (
            {"torch": "2.1.0", "cuda": "12.1", "source": "pytorch"},
            {"=py3.11_cuda12.1*": "", "pytorch-cuda=12.1": "pytorch-cuda=12.4"},
            r"py3.11_cpu_0.*The request is `pytorch::pytorch=2.1.0` \(written",
        ),
        pytest.param(
            {"torch": "2.6", "cuda": "12.6", "source": "conda-forge"},
            {"=cuda126*": "", "cuda-version=12.6": "six", '__cuda: "12.6"': '__unused: "0"'},
            r"cpu_mkl_py311.*The request is `pytorch=2.6.0` \(written",
            marks=pytest.mark.exhaustive,
        ),
        (
            {"torch": "2.4.1", "cuda": "12.0", "source": "conda-forge"},
            {"=cuda120*": "", "cuda-version=12.0": "six"},
            r"The request is `pytorch=2.4.1` \(written",
        ),
    ],
    ids=["pytorch-cuda", "no-cuda", "cpu-only"],
)
def test_cuda_guard_catches_traps_in_real_records(
    options: dict[str, object], changes: dict[str, str], message: str
) -> None:
    """The records hold these traps: each of them solves, to a CPU build."""
    resolution = resolve(**options, companions=False)
    with pytest.raises(
        CheckFailed,
        match=rf"request is for CUDA .*, but the locked build is another one.*{message}",
    ):
        lockfile.solve(edited(resolution, changes), resolution, solver=RECORDS)


def test_lock_with_several_platforms(tmp_path: Path) -> None:
    resolution, packages = solve(torch="2.6", cuda="12.6", platforms=BOTH, companions=False)
    path = tmp_path / lockfile.FILE
    path.write_text(lock_text(inputs(resolution), packages))
    locks = {platform: lockfile.read(path, platform) for platform in BOTH}
    for platform, locked in locks.items():
        torch = locked.find("pytorch")
        assert (
            torch and f"/conda-forge/{platform}/" in torch.url and torch.build.startswith("cuda126")
        )
        assert conda.channel_url("conda-forge") in torch.url  # not where this machine found it
    assert len(packages) == sum(len(locked.packages) for locked in locks.values())
    check_by_conda_lock(path)


def check_by_conda_lock(path: Path) -> None:
    """The conda-lock command itself takes the file, and renders a platform of it."""
    command = [sys.executable, "-m", "conda_lock", "render", "--kind", "explicit"]
    process.run([*command, "--platform", "linux-aarch64", path], cwd=path.parent)
    assert (
        "/linux-aarch64/pytorch-2.6.0-cuda126"
        in (path.parent / "conda-linux-aarch64.lock").read_text()
    )


def test_lock_as_of_a_past_day(tmp_path: Path) -> None:
    resolution, packages = solve(torch="2.6", cuda="12.6", as_of="2025-06-30", companions=False)
    path = tmp_path / lockfile.FILE
    path.write_text(lock_text(inputs(resolution), packages))
    assert lockfile.read(path).as_of == "2025-06-30"
    now = {
        package.name: package.version
        for package in solve(torch="2.6", cuda="12.6", companions=False)[1]
    }
    assert any(package.version != now.get(package.name) for package in packages)
    with pytest.raises(Unsolvable, match="since 2025-02-14, which `as_of` 2025-01-01 hides"):
        solve(torch="2.6", cuda="12.6", as_of="2025-01-01", companions=False)


@pytest.mark.exhaustive
def test_wheels_as_of_a_past_day() -> None:
    _, packages = solve(torch="2.3", cuda="12.1", as_of="2024-07-31", companions=False)
    locked = {package.name: package.version for package in packages}
    assert locked["torch"] == "2.3.1" and locked["fsspec"].startswith("2024.")
    with pytest.raises(Unsolvable, match=r"`torch==2\.3\.1` .*`as_of` .*before 2024-01-01"):
        solve(torch="2.3", cuda="12.1", as_of="2024-01-01", companions=False)


def of_a_day(path: Path, day: str, **options: object) -> Resolution:
    """A lock as it was made on a day, before what came later; it does not know that the days have
    gone by."""
    resolution = resolve(**options)
    _, packages = solve(as_of=day, **options)
    path.write_text(lock_text(inputs(resolution), packages))
    return resolution


def updated(path: Path, resolution: Resolution, *names: str) -> dict[str, str]:
    """What moved, as the new lock has it; `-` for what is gone."""
    locks = [lockfile.read(path, platform) for platform in resolution.platforms]
    packages = lockfile.update(inputs(resolution), resolution, names, locks, solver=RECORDS)
    before = {
        (package.platform, package.name): package for lock in locks for package in lock.packages
    }
    after = {(package.platform, package.name): package for package in packages}
    moved = sorted(
        key
        for key in before.keys() | after.keys()
        if _file(before.get(key)) != _file(after.get(key))
    )
    return {
        name: after[platform, name].version if (platform, name) in after else "-"
        for platform, name in moved
    }


def _file(package: LockedPackage | None) -> str | None:
    return package.sha256 if package else None


def test_update_changes_only_what_it_must(tmp_path: Path) -> None:
    path = tmp_path / lockfile.FILE
    resolution = of_a_day(
        path, "2025-10-01", torch="2.6", cuda="12.6", companions=False, platforms=BOTH
    )
    fresh = {
        package.name: package.version
        for package in lockfile.solve(inputs(resolution), resolution, solver=RECORDS)
    }
    assert updated(path, resolution, "numpy") == {"numpy": fresh["numpy"]}
    blas = updated(path, resolution, "libblas")
    assert (
        {"libblas", "libcblas", "liblapack"}
        <= blas.keys()
        <= {"libblas", "libcblas", "liblapack", "libopenblas"}
    )
    python = updated(path, resolution, "python")
    assert python["python"] == fresh["python"] and 2 < len(python) < 30


@pytest.mark.exhaustive
def test_wheel_update_changes_only_what_it_must(tmp_path: Path) -> None:
    path = tmp_path / lockfile.FILE
    resolution = of_a_day(path, "2024-10-01", torch="2.3", cuda="12.1", companions=False)
    assert updated(path, resolution, "fsspec").keys() == {"fsspec"}
    ipython = updated(path, resolution, "IPython")
    assert "ipython" in ipython and "torch" not in ipython and len(ipython) < 10
    with pytest.raises(InvalidSpec, match=r"The lock has no `numpi`\. Did you mean `numpy`"):
        updated(path, resolution, "numpi")


@pytest.mark.exhaustive
def test_single_package_as_of_another_day(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    home = Home(
        root=home.root, env={**home.env, "PROVISION_MIRRORS": f"*={SHARED_RECORDS.as_uri()}"}
    )
    options = (
        "--torch",
        "2.6",
        "--cuda",
        "12.6",
        "--source",
        "conda-forge",
        "--no-companions",
    )
    spec = home.envs / "lab" / "spec.yml"
    spec.parent.mkdir(parents=True)
    spec.write_text('as_of: "2025-06-30"\n')
    assert home.run("lock", "lab", *options).returncode == 0
    spec.write_text('as_of: "2025-12-31"\n')
    stale = home.run("lock", "lab", *options)
    assert (
        stale.returncode == 6
        and "was locked as of 2025-06-30, and is now requested as of 2025-12-31" in stale.stderr
    )


@pytest.mark.exhaustive
def test_wheels_of_several_platforms() -> None:
    resolution, packages = solve(
        torch="2.13", cuda="13.0", source="wheels", companions=False, platforms=BOTH
    )
    torch = {package.platform: package for package in packages if package.name == "torch"}
    assert torch["linux-64"].filename.endswith("x86_64.whl") and torch[
        "linux-aarch64"
    ].filename.endswith("aarch64.whl")
    nccl = {
        package.platform: package.version
        for package in packages
        if package.name == "nvidia-nccl-cu13"
    }
    assert nccl == dict.fromkeys(BOTH, resolution.nccl)
    with pytest.raises(
        CheckFailed, match=r"request is for CUDA 12\.8, .* it is a CPU build.*linux-aarch64"
    ):
        added = resolve(
            torch="2.9", cuda="12.8", source="wheels", companions=False
        )  # and a platform written in by hand
        lockfile.solve(
            inputs(dataclasses.replace(added, platforms=("linux-aarch64",))), added, solver=RECORDS
        )


@pytest.mark.exhaustive
def test_package_of_both_managers_comes_from_conda() -> None:
    _, packages = solve(torch="2.3", cuda="12.1", conda=("numpy=1.26.*",))
    assert [package.manager for package in packages if package.name == "numpy"] == ["conda"]


@pytest.mark.exhaustive
def test_condas_package_under_another_name_stands_for_the_wheel() -> None:
    conda_names = ("python-graphviz", "msgpack-python")
    _, packages = solve(torch="2.3", cuda="12.1", conda=conda_names, pip=("graphviz", "msgpack"))
    wheels = {package.name for package in packages if package.manager == "pip"}
    assert not wheels & {"graphviz", "msgpack"}


@pytest.mark.exhaustive
def test_a_c_library_does_not_stand_for_a_wheel_of_its_name() -> None:
    """conda's xxhash 0.8 is a C library; the request's fast checkpoints need the wheel's 2.0."""
    _, packages = solve(torch="2.3", cuda="12.1", conda=("zstd", "xxhash"), pip=("zstd",))
    managers = {(package.name, package.manager) for package in packages}
    for name in ("zstd", "xxhash"):
        assert {(name, "conda"), (name, "pip")} <= managers


@pytest.mark.exhaustive
def test_wheel_that_needs_torch_accepts_condas() -> None:
    _, packages = solve(
        torch="2.3", cuda="12.1", source="pytorch", companions=False, pip=("torchmetrics",)
    )
    assert {package.name for package in packages if package.manager == "pip"} == {
        "torchmetrics",
        "lightning-utilities",
    }
    assert "pip" in {
        package.name for package in packages
    }  # the prefix's own, which conda-lock installs wheels with


def test_unsolvable_request_is_reported() -> None:
    with pytest.raises(Unsolvable, match="no-such-package"):
        solve(torch="2.3", cuda="12.1", conda=("no-such-package",))


def test_lock_bytes_are_reproducible(tmp_path: Path) -> None:
    """Whatever the language, the time zone, the order of sets, and where one stands."""
    locks = []
    somebody: list[dict[str, str]] = [
        {"LC_ALL": "C", "TZ": "Asia/Tokyo", "PYTHONHASHSEED": "1"},
        {"LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "2"},
    ]
    for number, variables in enumerate(somebody):
        other_home = make_home(tmp_path / f"home {number}")
        home = dataclasses.replace(
            other_home,
            env={
                **other_home.env,
                **variables,
                "PROVISION_MIRRORS": f"*={SHARED_RECORDS.as_uri()}",
            },
        )
        options = (
            "--torch",
            "2.6",
            "--cuda",
            "12.6",
            "--source",
            "conda-forge",
            "--platform",
            "linux-64",
            "--platform",
            "linux-aarch64",
        )
        result = home.run("lock", *options, "--no-companions")
        assert result.returncode == 0, result.stderr
        locks += [path.read_bytes() for path in home.envs.glob("*/conda-lock.yml")]
    assert len(locks) == 2 and locks[0] == locks[1]
    assert not [
        line
        for line in locks[0].decode().splitlines()
        if "file://" in line or str(tmp_path) in line
    ]


@pytest.mark.exhaustive
def test_relock_replaces_a_damaged_lock(tmp_path: Path) -> None:
    other_home = make_home(tmp_path)
    home = dataclasses.replace(
        other_home, env={**other_home.env, "PROVISION_MIRRORS": f"*={SHARED_RECORDS.as_uri()}"}
    )
    assert (
        home.run(
            "lock",
            "lab",
            "--torch",
            "2.6",
            "--cuda",
            "12.6",
            "--source",
            "conda-forge",
            "--no-companions",
        ).returncode
        == 0
    )
    path = home.envs / "lab" / lockfile.FILE
    whole = path.read_bytes()
    path.write_bytes(whole[:3000])
    completed = home.run("lock", "lab")
    assert completed.returncode == 7 and "--relock" in completed.stderr, completed.stderr
    assert path.read_bytes() == whole[:3000]
    result = home.run("lock", "lab", "--relock")
    assert (
        result.returncode == 0
        and "It will be replaced" in result.stderr
        and path.read_bytes() == whole
    )


def test_wheel_lock_is_reproducible() -> None:
    texts = []
    for _ in range(2):
        resolution, packages = solve(torch="2.3", cuda="12.1")
        texts.append(lock_text(inputs(resolution), packages))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("release", RELEASE_CASES, ids=lambda release: release.version)
def test_every_index_build_locks(
    release: catalog.Release, every_index_build: dict[str, Future[Solved]]
) -> None:
    build = index_build(release)
    resolution, packages = every_index_build[release.version].result()
    locked = {package.name: package for package in packages}
    assert locked["torch"].version == release.version
    assert locked["python"].version.startswith(resolution.python + ".")
    nccl = [
        package.version for name, package in locked.items() if name.startswith("nvidia-nccl-cu")
    ]
    assert nccl == ([resolution.nccl] if build.nccl and build.nccl_is_package else [])
    for package in packages:
        assert len(package.sha256) == 64
