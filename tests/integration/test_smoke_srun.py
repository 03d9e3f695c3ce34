"""srun starts the smoke test's ranks itself: no torchrun, and no variables but Slurm's own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import provision_runtime
from tests.integration.slurm_cluster import SlurmCluster
from tests.integration.smoke_process import PYTHON

pytestmark = [pytest.mark.slurm, pytest.mark.torch]

RUNTIME = Path(provision_runtime.__file__).parent


def run(cluster: SlurmCluster, command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, **cluster.environment},
    )


def srun(
    cluster: SlurmCluster, out: Path, *options: str, tasks: int
) -> tuple[subprocess.CompletedProcess[str], Any]:
    """The answer of srun over two nodes, and the report."""
    command = [
        *("srun", "--nodes=2", f"--ntasks={tasks}", "--cpus-per-task=1", *options),
        *(PYTHON, "-s", str(RUNTIME), "smoke", "--quick", "--only", "barrier", "--out", str(out)),
    ]
    answer = run(cluster, command)
    report = out / "report.json"
    return answer, json.loads(report.read_text()) if report.exists() else None


def test_tasks_of_srun_form_one_world(slurm_cluster: SlurmCluster, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir(mode=0o777)
    answer, report = srun(slurm_cluster, out, tasks=3)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert report["world_size"] == 3
    assert report["hosts"] == ["n1", "n2"]


@pytest.mark.exhaustive
def test_separate_worlds_end_at_once(slurm_cluster: SlurmCluster, tmp_path: Path) -> None:
    """Each task believes that it is alone."""
    alone = ("env", "-u", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE=2")
    command = [
        *("srun", "--nodes=2", "--ntasks=2", *alone, PYTHON, "-s", str(RUNTIME)),
        *("smoke", "--quick", "--ranks", "1", "--out", str(tmp_path / "out")),
    ]
    answer = run(slurm_cluster, command)
    assert answer.returncode != 0
    text = answer.stdout + answer.stderr
    assert "another smoke test is writing there" in text
    assert "2 tasks were started (OMPI_COMM_WORLD_SIZE)" in text
    assert "world-size" in text
    assert "barrier" not in answer.stdout
