"""The ways a smoke test is started: alone from a copy, under torchrun, as Slurm does, without a network."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from provision_runtime.comm.addresses import free_port
from provision_runtime.report import model
from tests.integration.smoke_process import (
    FOLDER,
    PYTHON,
    TIMEOUT_S,
    environment,
    variables_of,
)

pytestmark = pytest.mark.torch

CPU_RUN = ("--backend", "gloo", "--profile", "quick")
# How ranks start and meet shows in these phases; what comes after them is the same.
UNTIL_COLLECTIVES = ("--only", "collectives")
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d")
LOOPBACK = ("--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1")


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """`inside` alone, as it lies in an image, under a name with a space and a quote."""
    folder = tmp_path / "it's here" / "inside"
    shutil.copytree(FOLDER, folder)
    return folder


def start(
    out: Path, command: list[str], *arguments: str, variables: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*command, "smoke", "--out", str(out), *CPU_RUN, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
        env={**environment(), **(variables or {})},
    )


def passes(out: Path, *children: subprocess.Popen[str]) -> model.Report:
    for child in children:
        outputs = child.communicate(timeout=TIMEOUT_S)
        assert child.returncode == 0, outputs
    report = model.loads((out / "report.json").read_text())
    assert report.verdict == "pass"
    return report


@pytest.mark.exhaustive
def test_runs_from_a_copy_anywhere(copied: Path, tmp_path: Path) -> None:
    child = start(tmp_path / "out", [PYTHON, str(copied)])
    assert passes(tmp_path / "out", child).world_size == 2


@pytest.mark.exhaustive
def test_under_torchrun(copied: Path, tmp_path: Path) -> None:
    command = [PYTHON, *TORCHRUN, *LOOPBACK, str(copied)]
    child = start(tmp_path / "out", command, *UNTIL_COLLECTIVES)
    assert passes(tmp_path / "out", child).world_size == 2


@pytest.mark.exhaustive
def test_dead_rank_under_torchrun_is_no_success(copied: Path, tmp_path: Path) -> None:
    command = [PYTHON, *TORCHRUN, *LOOPBACK, str(copied), "smoke", "--out", str(tmp_path / "out")]
    command += [*CPU_RUN, "--inject", "die:1:barrier"]
    result = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False)
    report = model.loads((tmp_path / "out" / "report.json").read_text())
    assert result.returncode == 1
    assert report.verdict == "fail"
    assert "rank 1" in next(phase.message for phase in report.phases if phase.name == "barrier")


@pytest.mark.exhaustive
def test_slurm_variables(copied: Path, tmp_path: Path) -> None:
    port, ranks = free_port(), []
    for rank in range(2):
        variables = variables_of(rank, port)
        del variables["LOCAL_WORLD_SIZE"]
        ranks.append(start(tmp_path / "out", [PYTHON, str(copied)], variables=variables))
    assert passes(tmp_path / "out", *ranks).hosts == [os.uname().nodename]


@pytest.mark.exhaustive
@pytest.mark.mounts
@pytest.mark.needs("ip", "hostname")
def test_no_network_and_unresolvable_host_name(copied: Path, tmp_path: Path) -> None:
    """As in a container with `--network none`: only a loopback interface, no resolver."""
    script = 'hostname nosuchname.invalid && ip link set lo up && exec "$@"'
    isolation = ["unshare", "--net", "--uts", "sh", "-c", script, "sh"]
    child = start(tmp_path / "out", [*isolation, PYTHON, str(copied)], *UNTIL_COLLECTIVES)
    assert passes(tmp_path / "out", child).hosts == ["nosuchname.invalid"]


@pytest.mark.exhaustive
def test_facts_of_a_real_torch(copied: Path) -> None:
    completed = subprocess.run(
        [PYTHON, str(copied), "facts"], capture_output=True, text=True, check=True
    )
    result = json.loads(completed.stdout)
    assert result["error"] is None
    assert result["torch"]["file"].startswith(result["python"]["prefix"])
    if result["torch"]["cuda"] is not None:
        assert result["torch"]["nccl"]["loaded"] is not None
        assert result["torch"]["arch_list"] != []
