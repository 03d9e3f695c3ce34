"""From a real smoke test to its report, JUnit XML and page: what ranks measured arrives, and a fault is in all three."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from jsonschema import Draft202012Validator

from provision import report
from provision.core.schema import SCHEMAS
from provision_runtime.smoke.options import PHASES
from tests.integration.smoke_process import smoke

pytestmark = pytest.mark.torch


def test_measurements_appear_on_the_page_and_fit_the_schema(tmp_path: Path) -> None:
    expected_phases = ("facts", "rendezvous", "barrier", "collectives", "compute")
    left_out = [phase for phase in PHASES if phase not in expected_phases]
    run = smoke(
        tmp_path,
        *(argument for phase in left_out for argument in ("--skip", phase)),
        "--junit",
        str(tmp_path / "junit.xml"),
    )
    assert run.status == 0, run.stderr
    schema = json.loads((SCHEMAS / "smoke-report.schema.json").read_text())
    Draft202012Validator(schema).validate(json.loads((tmp_path / "report.json").read_text()))

    cases = list(ElementTree.parse(tmp_path / "junit.xml").iter("testcase"))
    assert [case.get("name") for case in cases if case.find("skipped") is None] == list(
        expected_phases
    )
    assert [case.get("name") for case in cases if case.find("skipped") is not None] == left_out
    assert not [
        case for case in cases if case.find("failure") is not None or case.find("error") is not None
    ]

    page = report.build_page([report.load(tmp_path / "report.json")])
    curve = next(
        item for item in page.curves if (item.collective, item.dtype) == ("all_reduce", "float32")
    )
    assert len(curve.points) >= 3
    assert all(point.busbw_gb_s is not None and point.time_us > 0 for point in curve.points)
    (table,) = page.ranks
    groups = {column.group for column in table.columns}
    assert groups == {"barrier", "compute", "all_reduce of float32"}
    assert len(table.rows) == 2
    assert all(cell.value for row in table.rows for cell in row)
    assert [
        phase.name for phase in page.measurements[0].phases if phase.verdict == "skipped"
    ] == left_out


def test_dead_rank_is_in_report_junit_and_page(tmp_path: Path) -> None:
    run = smoke(tmp_path, "--inject", "die:0:barrier", "--junit", str(tmp_path / "junit.xml"))
    assert run.status == 1
    root = ElementTree.parse(tmp_path / "junit.xml").getroot()
    failed = [case for case in root.iter("testcase") if case.find("failure") is not None]
    assert [case.get("name") for case in failed] == ["barrier"]
    assert "rank-died, rank 0" in str(failed[0][0].text)
    unfinished = [
        case.get("name") for case in root.iter("testcase") if case.find("error") is not None
    ]
    assert unfinished == list(PHASES[PHASES.index("barrier") + 1 :])

    page = report.build_page([report.load(tmp_path / "report.json")])
    barrier = next(phase for phase in page.measurements[0].phases if phase.name == "barrier")
    assert ("rank-died", (0,)) in [(finding.id, finding.ranks) for finding in barrier.findings]
    assert "No collective was measured, so there are no curves." in page.missing
