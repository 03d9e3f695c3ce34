"""From a real fault to the report, JUnit XML and the page. That of a clean run: test_smoke_run.py."""

from __future__ import annotations

import signal
from pathlib import Path
from xml.etree import ElementTree

import pytest

from provision import report
from provision_runtime.report import junit
from provision_runtime.smoke.options import PHASES
from tests.integration.smoke_process import smoke

pytestmark = pytest.mark.torch


def test_dead_rank_is_in_report_junit_and_page(tmp_path: Path) -> None:
    """Rank 0 would report; without it the launcher does, which knows the signal."""
    run = smoke(tmp_path, "--inject", "die:0:barrier", "--skip", "checkpoint")
    assert run.status == 1
    assert signal.Signals.SIGKILL.name in run.message("rank-died")
    durations = [phase.duration_s for phase in run.report.phases[:3]]
    assert all(durations)
    root = ElementTree.fromstring(junit.dumps({"prefix": run.report}))
    failed = [case for case in root.iter("testcase") if case.find("failure") is not None]
    assert [case.get("name") for case in failed] == ["barrier"]
    assert "rank-died, rank 0" in str(failed[0][0].text)
    unfinished = [
        case.get("name") for case in root.iter("testcase") if case.find("error") is not None
    ]
    assert unfinished == [phase for phase in PHASES[3:] if phase != "checkpoint"]

    page = report.build_page([report.load(tmp_path / "report.json")])
    barrier = next(phase for phase in page.measurements[0].phases if phase.name == "barrier")
    assert ("rank-died", [0]) in [(finding.id, finding.ranks) for finding in barrier.findings]
    assert "No collective was measured, so there are no curves." in page.missing
