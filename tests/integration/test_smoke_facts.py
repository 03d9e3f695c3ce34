"""The facts phase on real contaminations: reported on the rank that has them and nowhere else."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from provision_runtime.comm.addresses import free_port
from tests.integration import smoke_process
from tests.integration.smoke_process import (
    FOLDER,
    PYTHON,
    SmokeRun,
    environment,
    smoke,
    variables_of,
)
from tests.programs import write_program

pytestmark = pytest.mark.torch

# Another torch than PYTHON's, for a drift that nobody made up.
OTHER_PYTHON = os.environ.get("PROVISION_TEST_OTHER_PYTHON")
# facts is judged between ranks once they have met; one rank needs nobody.
FACTS_OF_ALL = ("--only", "rendezvous")
FACTS_ALONE = ("--only", "facts", "--ranks", "1")


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONPATH", "LD_LIBRARY_PATH", "LD_PRELOAD"):
        monkeypatch.delenv(name, raising=False)


def row_of(ran: SmokeRun, rank: int) -> dict[str, Any]:
    return dict(ran.phases["facts"].data["ranks"][rank])


def own_nccl() -> Path | None:
    ask = "import importlib.util as u, pathlib as p; print(p.Path(u.find_spec('torch').origin).parents[1])"
    site = subprocess.run(
        [PYTHON, "-c", ask], capture_output=True, text=True, check=True, env=environment()
    ).stdout.strip()
    path = Path(site) / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    return path if path.exists() else None


@pytest.fixture
def nccl() -> Path:
    path = own_nccl()
    if path is None:
        pytest.skip(f"the torch of {PYTHON} has no libnccl of its own")
    return path


@pytest.mark.exhaustive
def test_unused_second_nccl_is_not_mistaken_for_torchs(tmp_path: Path, nccl: Path) -> None:
    copy = shutil.copy(nccl, tmp_path)
    ask = f"""
import ctypes, sys, torch
ctypes.CDLL({str(copy)!r})
sys.path.append({str(FOLDER.parent)!r})
from provision_runtime.facts import libraries
files = libraries.loaded()
print({str(copy)!r} in files, libraries.nccl_file(files))"""
    result = subprocess.run(
        [PYTHON, "-c", ask], capture_output=True, text=True, check=True, env=environment()
    ).stdout.split()
    assert result == ["True", str(nccl.resolve())]


@pytest.mark.exhaustive
def test_preloaded_library_is_found(
    short_path: Path, nccl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = str(shutil.copy(nccl, short_path))
    monkeypatch.setenv("LD_PRELOAD", copy)
    run = smoke(short_path / "out", *FACTS_ALONE)
    assert run.findings == {("facts", "nccl-shadowed", (0,))}
    assert row_of(run, 0)["nccl_file"] == copy


def test_library_path_is_judged_by_what_the_linker_loaded(
    tmp_path: Path, nccl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's wheels bind their libraries by path (RPATH), which comes before the variable; other builds do not."""
    copy = str(shutil.copy(nccl, tmp_path))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    run = smoke(tmp_path / "out", *FACTS_ALONE)
    used = row_of(run, 0)["nccl_file"]
    assert used in (copy, str(nccl))
    assert run.findings == {("facts", "nccl-shadowed" if used == copy else "library-path", (0,))}


@pytest.mark.exhaustive
@pytest.mark.mounts
def test_docker_default_shared_memory_is_too_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = tmp_path / "python"
    mount = f'mount -t tmpfs -o size=32m tmpfs /dev/shm && exec {shlex.quote(PYTHON)} "$@"'
    write_program(inside, f'#!/bin/sh\nexec unshare -m sh -c {shlex.quote(mount)} sh "$@"\n')
    monkeypatch.setattr(smoke_process, "PYTHON", str(inside))
    run = smoke(tmp_path / "out", *FACTS_ALONE)
    assert run.findings == {("facts", "shm-small", (0,))}
    assert (
        run.message("shm-small") == "/dev/shm has 32 MiB; 256 MiB are needed for 1 rank and loaders"
    )


@pytest.mark.parametrize(
    "body",
    [
        "raise ImportError('libtorch_cuda.so: undefined symbol: ncclCommRegister')",
        "import os; os.abort()",
    ],
)
def test_broken_torch_is_the_finding(tmp_path: Path, body: str) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "torch.py").write_text(body)
    run = smoke(tmp_path / "out", *FACTS_ALONE, PYTHONPATH=str(tmp_path / "modules"))
    assert ("facts", "torch-broken", (0,)) in run.findings
    assert "rank-died" not in {id for _, id, _ in run.findings}


@pytest.mark.gpu
def test_gpu_sharing_is_allowed_with_gloo_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    run = smoke(tmp_path / "gloo", "--device", "cuda")
    assert (run.status, run.findings) == (0, set())
    assert [row_of(run, rank)["device"] for rank in range(2)] == ["cuda:0", "cuda:0"]
    assert smoke(tmp_path / "nccl", "--backend", "nccl").findings == {
        ("facts", "gpu-shared", (0, 1))
    }


def test_enforced_cpu_quota_is_reported() -> None:
    root = Path("/sys/fs/cgroup")
    if (root / "cpu" / "cpu.cfs_quota_us").exists():
        root /= "cpu"
    group = root / f"test-{os.getpid()}"
    try:
        group.mkdir()
        limit = group / ("cpu.cfs_quota_us" if (group / "cpu.cfs_quota_us").exists() else "cpu.max")
        limit.write_text("150000")
    except OSError as error:
        if group.exists():
            group.rmdir()
        pytest.skip(f"no cgroup can be made here: {error}")
    ask = f"import sys; sys.path.insert(0, {str(FOLDER.parent)!r}); from provision_runtime.facts import limits; print(limits.cpus()['quota'])"
    join = f'echo $$ > {group}/cgroup.procs && exec {shlex.quote(sys.executable)} -c "$1"'
    try:
        result = subprocess.run(
            ["sh", "-c", join, "sh", ask], capture_output=True, text=True, check=True
        )
    finally:
        group.rmdir()
    assert result.stdout.strip() == "1.5"


def test_two_torch_installations_are_drift(tmp_path: Path) -> None:
    if OTHER_PYTHON is None:
        pytest.skip("name a second interpreter, with another torch, in PROVISION_TEST_OTHER_PYTHON")
    port = free_port()
    command = [str(FOLDER), "smoke", "--out", str(tmp_path), "--quick", "--backend", "gloo"]
    ranks = [
        subprocess.Popen(
            [python, *command, *FACTS_OF_ALL],
            env={**environment(), **variables_of(rank, port)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for rank, python in enumerate(newest_first(PYTHON, OTHER_PYTHON))
    ]
    for rank in ranks:
        rank.communicate(timeout=smoke_process.TIMEOUT_S)
    facts = json.loads((tmp_path / "report.json").read_text())["phases"][0]
    drift = [finding for finding in facts["findings"] if finding["id"] == "environment-drift"]
    assert {tuple(finding["ranks"]) for finding in drift} == {(0, 1)}
    assert any(finding["message"].startswith("torch is ") for finding in drift)


def newest_first(*pythons: str) -> list[str]:
    """The store of 2.3.1 does not answer the client of 2.13 (tried), the other way round it does."""
    ask = "from importlib import metadata; print(metadata.version('torch'))"
    versions = {
        python: subprocess.run(
            [python, "-c", ask], capture_output=True, text=True, check=True
        ).stdout
        for python in pythons
    }
    return sorted(pythons, key=lambda python: Version(versions[python]), reverse=True)
