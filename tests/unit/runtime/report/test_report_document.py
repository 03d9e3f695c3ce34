from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from provision_runtime.report import model
from provision_runtime.smoke.options import PHASES
from provision_runtime.smoke.reporter import write_report
from tests.paths import DATA

SAMPLE = DATA / "smoke-report.json"


def phase(name: str, verdict: str) -> model.ReportedPhase:
    bad = (
        [model.ReportedFinding("slow-rank", verdict, [1], "waited for", "look there")]
        if verdict != "pass"
        else []
    )
    return model.ReportedPhase(name, verdict, 0.5, "said", {"count": 1}, bad)


def sample(*verdicts: str) -> model.Report:
    return model.Report(
        started_at="2026-01-01T00:00:00Z",
        duration_s=1.5,
        backend="gloo",
        device="cpu",
        world_size=2,
        hosts=["node1"],
        profile="default",
        skipped=[],
        facts={"torch": None},
        phases=[phase(f"phase{place}", verdict) for place, verdict in enumerate(verdicts)],
    )


def test_junit_is_written_with_the_report_and_agrees(tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    write_report(sample("pass", "fail"), tmp_path / "report.json", path)
    (suite,) = ElementTree.parse(path).getroot()
    assert (suite.get("name"), suite.get("tests"), suite.get("failures")) == ("smoke", "2", "1")
