"""From a real fault to the report and the page. That of a clean run: test_smoke_run.py."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from provision import report
from tests.integration.smoke_process import smoke

pytestmark = pytest.mark.torch


def test_dead_rank_is_in_report_and_page(tmp_path: Path) -> None:
    """Rank 0 would report; without it the launcher does, which knows the signal."""
    run = smoke(tmp_path, "--inject", "die:0:barrier", "--skip", "checkpoint")
    assert run.status == 1
    assert signal.Signals.SIGKILL.name in run.message("rank-died")
    durations = [phase.duration_s for phase in run.report.phases[:3]]
    assert all(durations)
    page = report.build_page([report.load(tmp_path / "report.json")])
    (file,) = page.files
    barrier = next(phase for phase in file.runs[0].report.phases if phase.name == "barrier")
    assert ("rank-died", [0]) in [(finding.id, finding.ranks) for finding in barrier.findings]
