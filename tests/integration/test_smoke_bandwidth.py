"""Phases collectives and compute for real, over Gloo: two and four ranks, expected figures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.integration.smoke_process import SmokeRun, smoke

pytestmark = pytest.mark.torch

ONLY = ("--only", "collectives")


def rows(ran: Any) -> list[dict[str, Any]]:
    return list(ran.phases["collectives"].data["rows"])


@pytest.mark.exhaustive
def test_every_type_is_exact_on_every_rank(tmp_path: Path) -> None:
    """Four ranks, so that a rank's own share is not the same as half of the array, nor its neighbors each other."""
    run = smoke(tmp_path, "--ranks", "4", "--profile", "full", *ONLY)
    assert (run.status, run.findings) == (0, set())
    measured = rows(run)
    assert {row["dtype"] for row in measured} == {"float32", "float16"}
    assert {row["wrong"] for row in measured} == {0}
    assert all(row["busbw_gb_s"] > 0 and len(row["time_us_by_rank"]) == 4 for row in measured)


@pytest.fixture(scope="module")
def measured_run(tmp_path_factory: pytest.TempPathFactory) -> SmokeRun:
    return smoke(tmp_path_factory.mktemp("measured"), *ONLY)


@pytest.mark.exhaustive
def test_gloo_is_not_judged(measured_run: SmokeRun) -> None:
    assert (measured_run.status, measured_run.findings) == (0, set())
    remarks = [row["judged"] for row in rows(measured_run)]
    assert set(remarks) == {"Gloo on CPUs: not judged"}


@pytest.mark.exhaustive
def test_ranks_sharing_cores_are_measured_but_not_judged(tmp_path: Path) -> None:
    cpus = len(os.sched_getaffinity(0))
    run = smoke(tmp_path, "--only", "compute", "--ranks", str(cpus + 1))
    result = run.phases["compute"].data
    assert (run.status, run.findings) == (0, set())
    assert result["judged"] == f"not judged: {cpus + 1} ranks on {cpus} cores"
    assert [rank["rank"] for rank in result["ranks"]] == list(range(cpus + 1))
    assert all(rank["matmul_float32"] > 0 and rank["copy"] > 0 for rank in result["ranks"])
