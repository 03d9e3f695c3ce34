"""Phases collectives and compute for real, over Gloo: every collective, two and four ranks, expected figures and baselines."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.integration.smoke_process import FOLDER, PYTHON, SmokeRun, environment, smoke

pytestmark = pytest.mark.torch

ONLY = ("--only", "collectives")
ALL = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv"}


def rows(ran: Any) -> list[dict[str, Any]]:
    return list(ran.phases["collectives"].data["rows"])


@pytest.mark.exhaustive
def test_every_collective_and_type_is_exact_on_every_rank(tmp_path: Path) -> None:
    """Four ranks, so that a rank's own share is not the same as half of the array, nor its neighbors each other."""
    run = smoke(tmp_path, "--ranks", "4", "--profile", "full", *ONLY)
    assert (run.status, run.findings) == (0, set())
    measured = rows(run)
    refusal = run.phases["collectives"].data["refused"]
    assert {row["collective"] for row in measured} | {name.split()[0] for name in refusal} == ALL
    assert {row["dtype"] for row in measured if row["collective"] == "all_reduce"} == {
        "float32",
        "bfloat16",
        "float16",
    }
    assert {row["wrong"] for row in measured} == {0}
    assert all(row["busbw_gb_s"] > 0 and len(row["time_us_by_rank"]) == 4 for row in measured)
    assert set(refusal.values()) <= {
        f"not offered by gloo of torch {run.report.facts['torch']['version']}"
    }


@pytest.fixture(scope="module")
def measured_run(tmp_path_factory: pytest.TempPathFactory) -> SmokeRun:
    """A run that saves a baseline."""
    folder = tmp_path_factory.mktemp("measured")
    return smoke(folder, *ONLY, "--baseline", f"save={folder / 'baseline'}")


@pytest.mark.exhaustive
def test_measurements_are_saved(measured_run: SmokeRun) -> None:
    assert (measured_run.status, measured_run.findings) == (0, set())
    remarks = [row["judged"] for row in rows(measured_run)]
    assert set(remarks) == {"Gloo on CPUs: not judged"}
    saved = json.loads((measured_run.out / "baseline").read_text())
    assert saved["identity"]["ranks"] == 2
    assert [row["bytes"] for row in saved["rows"]] == [row["bytes"] for row in rows(measured_run)]


def test_measurements_below_a_baseline_are_reported(measured_run: SmokeRun, tmp_path: Path) -> None:
    """The baseline is of two ranks: for one it is refused, not compared."""
    baseline = tmp_path / "baseline"
    saved = json.loads((measured_run.out / "baseline").read_text())
    for row in saved["rows"]:
        row["time_us_min"] /= 1000
    baseline.write_text(json.dumps(saved))
    compare = ("--baseline", f"compare={baseline}")
    unlike = smoke(tmp_path / "unlike", *ONLY, "--ranks", "1", *compare)
    # Unknown is no success.
    assert (unlike.status, unlike.findings) == (1, {("collectives", "baseline-unlike", (0,))})
    assert {row["busbw_gb_s"] for row in rows(unlike)} == {None}
    slow = smoke(tmp_path / "slow", *ONLY, *compare)
    assert slow.findings == {("collectives", "baseline-regressed", (0, 1))}


def test_absent_baseline_is_refused_before_any_rank_starts(tmp_path: Path) -> None:
    option = "--baseline=compare=/absent.json"
    command = [PYTHON, str(FOLDER), "smoke", "--out", str(tmp_path / "out"), option]
    result = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    assert result.returncode == 2
    assert "/absent.json" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.exhaustive
def test_ranks_sharing_cores_are_measured_but_not_judged(tmp_path: Path) -> None:
    cpus = len(os.sched_getaffinity(0))
    run = smoke(tmp_path, "--only", "compute", "--ranks", str(cpus + 1))
    result = run.phases["compute"].data
    assert (run.status, run.findings) == (0, set())
    assert result["judged"] == f"not judged: {cpus + 1} ranks on {cpus} cores"
    assert [rank["rank"] for rank in result["ranks"]] == list(range(cpus + 1))
    assert all(rank["matmul_float32"] > 0 and rank["copy"] > 0 for rank in result["ranks"])
