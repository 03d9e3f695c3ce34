"""The phase facts for real: each contamination made, and found on the rank that has it and nowhere else."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

import provision.inside
from provision.inside import report

pytestmark = pytest.mark.torch

PYTHON = os.environ.get("PROVISION_TEST_PYTHON", sys.executable)
# Another torch than PYTHON's, for a drift that nobody made up.
OTHER_PYTHON = os.environ.get("PROVISION_TEST_OTHER_PYTHON")
FOLDER = Path(str(provision.inside.__file__)).parent
TIMEOUT_S = 180
QUICK = ("--profile", "quick", "--backend", "gloo")
# facts is judged between ranks once they have met.
FACTS_OF_ALL = ("--only", "rendezvous")
FACTS_ALONE = ("--only", "facts", "--ranks", "1")
OF_OTHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PYTHONPATH", "LD_LIBRARY_PATH")


def environment(**others: str) -> dict[str, str]:
    return {**{name: value for name, value in os.environ.items() if name not in OF_OTHERS}, **others}


def command(out: Path, *words: str, python: str = PYTHON) -> list[str]:
    return [python, "-s", str(FOLDER), "smoke", "--out", str(out), *QUICK, *words]


def found_by(words: list[str], out: Path, **variables: str) -> list[tuple[str, str, list[int]]]:
    """Phase, id and ranks of every finding."""
    ran = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment(**variables), cwd="/", check=False)
    read = report.loads((out / "report.json").read_text())
    findings = [(phase.name, finding.id, list(finding.ranks)) for phase in read.phases for finding in phase.findings]
    assert ran.returncode == (0 if report.succeeded(read.verdict) else 1), ran.stderr
    return findings


def row_of(out: Path, rank: int) -> dict[str, Any]:
    facts = next(phase for phase in report.loads((out / "report.json").read_text()).phases if phase.name == "facts")
    return dict(facts.data["ranks"][rank])


def own_nccl() -> Path | None:
    ask = "import importlib.util as u, pathlib as p; print(p.Path(u.find_spec('torch').origin).parents[1])"
    site = subprocess.run([PYTHON, "-s", "-c", ask], capture_output=True, text=True, check=True, env=environment()).stdout.strip()
    path = Path(site) / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    return path if path.exists() else None


@pytest.fixture
def nccl() -> Path:
    path = own_nccl()
    if path is None:
        pytest.skip(f"the torch of {PYTHON} has no libnccl of its own")
    return path


def test_each_contaminated_rank_is_named_for_its_own_contamination(tmp_path: Path) -> None:
    """Also rank 0, since the others are the majority."""
    faults = [word for fault in ("other-torch:0", "small-shm:1", "user-site:2") for word in ("--inject", fault)]
    findings = found_by(command(tmp_path, "--ranks", "3", *FACTS_OF_ALL, *faults), tmp_path)
    assert sorted(findings) == [
        ("facts", "environment-drift", [0]),
        ("facts", "shm-small", [1]),
        ("facts", "user-site", [2]),
    ]
    assert [row_of(tmp_path, rank)["rank"] for rank in range(3)] == [0, 1, 2]
    assert row_of(tmp_path, 1)["shm_device"] != row_of(tmp_path, 0)["shm_device"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [*(f"rank{rank}.log" for rank in range(3)), "report.json"]


def test_a_library_that_came_first_is_found_on_its_rank(tmp_path: Path, nccl: Path) -> None:
    findings = found_by(command(tmp_path, "--ranks", "2", *FACTS_OF_ALL, "--inject", "shadow-nccl:1"), tmp_path)
    assert findings == [("facts", "nccl-shadowed", [1])]
    assert row_of(tmp_path, 0)["nccl_file"] == str(nccl)
    assert row_of(tmp_path, 1)["nccl_file"] != str(nccl)


def test_what_cannot_be_shadowed_is_refused_before_anything_starts(tmp_path: Path) -> None:
    if own_nccl():
        pytest.skip(f"the torch of {PYTHON} has a libnccl to shadow")
    words = command(tmp_path / "out", "--inject", "shadow-nccl:0")
    ran = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment(), check=False)
    assert ran.returncode == 2
    assert "torch has no libnccl of its own here" in ran.stderr
    assert not (tmp_path / "out").exists()


def test_a_library_that_is_preloaded_is_traced_to_the_variable(tmp_path: Path, nccl: Path) -> None:
    copy = str(shutil.copy(nccl, tmp_path))
    out = tmp_path / "out"
    assert found_by(command(out, *FACTS_ALONE), out, LD_PRELOAD=copy) == [("facts", "nccl-shadowed", [0])]
    assert row_of(out, 0)["nccl_file"] == copy
    assert "LD_PRELOAD names it" in (out / "report.json").read_text()


def test_the_library_path_is_judged_by_what_the_linker_made_of_it(tmp_path: Path, nccl: Path) -> None:
    """torch's wheels bind their libraries by path (RPATH), which comes before the variable; other builds do not."""
    copy = str(shutil.copy(nccl, tmp_path))
    out = tmp_path / "out"
    (finding,) = found_by(command(out, *FACTS_ALONE), out, LD_LIBRARY_PATH=str(tmp_path))
    has_won = row_of(out, 0)["nccl_file"] == copy
    assert finding == ("facts", "nccl-shadowed" if has_won else "library-path", [0])
    assert has_won or row_of(out, 0)["nccl_file"] == str(nccl)


def test_the_shared_memory_of_a_docker_container_is_too_small(tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("mounting a small /dev/shm needs root and unshare")
    mount = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"'
    words = ["unshare", "-m", "sh", "-c", mount, "sh", *command(tmp_path, "--ranks", "1", *FACTS_OF_ALL)]
    assert found_by(words, tmp_path) == [("facts", "shm-small", [0])]


@pytest.mark.parametrize("body", ["raise ImportError('libtorch_cuda.so: undefined symbol: ncclCommRegister')", "import os; os.abort()"])
def test_a_broken_torch_is_the_finding(tmp_path: Path, body: str) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "torch.py").write_text(body)
    out = tmp_path / "out"
    findings = found_by(command(out, *FACTS_ALONE), out, PYTHONPATH=str(tmp_path / "modules"))
    assert ("facts", "torch-broken", [0]) in findings


def test_a_quota_that_the_kernel_enforces_is_seen() -> None:
    group = Path("/sys/fs/cgroup/cpu" if Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").exists() else "/sys/fs/cgroup") / f"test-{os.getpid()}"
    try:
        group.mkdir()
        limit = group / ("cpu.cfs_quota_us" if (group / "cpu.cfs_quota_us").exists() else "cpu.max")
        limit.write_text("150000")
    except OSError as error:
        if group.exists():
            group.rmdir()
        pytest.skip(f"no cgroup can be made here: {error}")
    ask = f"import sys; sys.path.insert(0, {str(FOLDER.parents[1])!r}); from provision.inside import limits; print(limits.cpus()['quota'])"
    join = f'echo $$ > {group}/cgroup.procs && exec {sys.executable} -c "$1"'
    try:
        told = subprocess.run(["sh", "-c", join, "sh", ask], capture_output=True, text=True, check=True)
    finally:
        group.rmdir()
    assert told.stdout.strip() == "1.5"


def newest_first(*pythons: str) -> list[str]:
    """The store of 2.3.1 does not answer the client of 2.13 (tried), the other way round it does."""
    ask = "from importlib import metadata; print(metadata.version('torch'))"
    versions = {python: subprocess.run([python, "-s", "-c", ask], capture_output=True, text=True, check=True).stdout for python in pythons}
    return sorted(pythons, key=lambda python: Version(versions[python]), reverse=True)


def test_two_installations_of_torch_drift_for_real(tmp_path: Path) -> None:
    if OTHER_PYTHON is None:
        pytest.skip("name a second interpreter, with another torch, in PROVISION_TEST_OTHER_PYTHON")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    world = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [
        subprocess.Popen(
            command(tmp_path, *FACTS_OF_ALL, python=python),
            env=environment(**world, RANK=str(rank), LOCAL_RANK=str(rank)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, python in enumerate(newest_first(PYTHON, OTHER_PYTHON))
    ]
    for rank in ranks:
        rank.communicate(timeout=TIMEOUT_S)
    facts = json.loads((tmp_path / "report.json").read_text())["phases"][0]
    told = {tuple(finding["ranks"]) for finding in facts["findings"] if finding["id"] == "environment-drift"}
    assert told == {(1,)}
    assert any(finding["message"].startswith("torch is ") for finding in facts["findings"])
