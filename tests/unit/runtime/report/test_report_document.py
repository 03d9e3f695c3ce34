from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provision_runtime.report import model
from provision_runtime.smoke.options import PHASES
from provision_runtime.smoke.reporter import write_report
from tests.paths import DATA

SAMPLE = DATA / "smoke-report.json"


def phase(name: str, verdict: str) -> model.ReportedPhase:
    finding = model.ReportedFinding("slow-rank", verdict, [1], "waited for", "look there")
    findings = [] if verdict == "pass" else [finding]
    return model.ReportedPhase(name, verdict, 0.5, "200 barriers", {"count": 1}, findings)


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


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (["pass", "pass"], "pass"),
        (["pass", "warn"], "warn"),
        (["warn", "unknown", "pass"], "unknown"),
        (["unknown", "fail", "warn"], "fail"),
        ([], "unknown"),
    ],
)
def test_overall_is_the_worst_verdict(verdicts: list[str], expected: str) -> None:
    assert model.overall(verdicts) == expected


def test_unknown_is_not_success() -> None:
    assert [verdict for verdict in model.WORST_FIRST if model.succeeded(verdict)] == [
        "warn",
        "pass",
    ]


def test_shared_sample_round_trip() -> None:
    text = SAMPLE.read_text()
    read = model.loads(text)
    assert (read.verdict, read.world_size, read.hosts) == ("warn", 2, ["node1"])
    assert [phase.name for phase in read.phases] == list(PHASES)
    assert [(finding.id, finding.ranks) for phase in read.phases for finding in phase.findings] == [
        ("slow-rank", [1])
    ]
    assert model.dumps(read) == text


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", model.dumps(sample("pass"))[:-40]])
def test_what_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(model.ReportUnreadable):
        model.loads(text)


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (("phases", 0, "findings"), {}, "at report.phases[0].findings: it is {}, not a list"),
        (("phases", 0), [], "at report.phases[0]: it is [], not an object"),
        (("phases", 0, "duration_s"), True, "at report.phases[0].duration_s: it is True"),
        (("phases", 0, "verdict"), "fine", "unknown verdict: fine"),
        (("hosts", 0), 1, "at report.hosts[0]: it is 1, not a text"),
        (("world_size",), "2", "at report.world_size: it is '2', not an integer"),
        (("extra",), 1, "at report: there is no field extra"),
        (("schema",), 1, "it has schema 1 and kind 'smoke'"),
    ],
)
def test_refusal_names_entry_and_field(
    path: tuple[str | int, ...], value: object, problem: str
) -> None:
    document: Any = json.loads(model.dumps(sample("pass")))
    holder = document
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = value
    with pytest.raises(model.ReportUnreadable, match=re.escape(problem)):
        model.parse(document)


def test_contradictory_report_is_refused() -> None:
    text = model.dumps(sample("fail")).replace('"verdict": "fail"', '"verdict": "pass"', 1)
    with pytest.raises(model.ReportUnreadable, match=r"'pass'.*'fail'"):
        model.loads(text)


def test_write_replaces_the_file_atomically(tmp_path: Path) -> None:
    write_report(sample("pass"), tmp_path)
    write_report(replace(sample("fail"), hosts=["node2"]), tmp_path)
    assert model.loads((tmp_path / "report.json").read_text()).hosts == ["node2"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.json"]
