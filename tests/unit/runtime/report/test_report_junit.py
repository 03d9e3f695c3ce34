"""JUnit XML of smoke reports, as CI services read it: parsed back, never compared as text."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from provision_runtime.report import junit, model
from tests.evidence import finding, phase, report


def parsed(**reports: dict[str, Any]) -> ElementTree.Element:
    parsed_reports = {name: model.parse(document) for name, document in reports.items()}
    return ElementTree.fromstring(junit.dumps(parsed_reports).encode())


def test_a_phase_is_a_test_case() -> None:
    root = parsed(
        prefix=report(phase(), phase(name="ddp", duration_s=1.5), hosts=["node1", "node2"])
    )
    assert [
        (case.get("classname"), case.get("name"), case.get("time"))
        for case in root.iter("testcase")
    ] == [
        ("prefix", "barrier", "0.060"),
        ("prefix", "ddp", "1.500"),
    ]
    assert not list(root.iter("failure"))
    assert [out.text for out in root.iter("system-out")] == ["200 barriers", "200 barriers"]
    (suite,) = root.iter("testsuite")
    assert (suite.get("hostname"), suite.get("timestamp"), suite.get("time")) == (
        "node1 node2",
        "2026-01-01T00:00:00Z",
        "12.500",
    )
    assert {item.get("name"): item.get("value") for item in root.iter("property")}[
        "backend"
    ] == "gloo"


def test_findings_are_one_failure_listing_all() -> None:
    findings = [finding(), finding(id="gpu-shared", ranks=[0, 1], advice="")]
    (case,) = parsed(
        prefix=report(phase(verdict="fail", message="in short", findings=findings))
    ).iter("testcase")
    (failure,) = case.iter("failure")
    assert (failure.get("type"), failure.get("message")) == ("wrong-value", "in short")
    assert (
        failure.text
        == "wrong-value, rank 1: 1 wrong of 2 at 8 B\n  -> check its memory\ngpu-shared, ranks 0, 1: 1 wrong of 2 at 8 B"
    )


def test_unknown_is_an_error_and_failures_come_first() -> None:
    unknown = finding(id="not-judged", verdict="unknown")
    (case,) = parsed(prefix=report(phase(verdict="unknown", findings=[unknown]))).iter("testcase")
    assert [child.tag for child in case] == ["error"]
    (case,) = parsed(prefix=report(phase(verdict="fail", findings=[unknown, finding()]))).iter(
        "testcase"
    )
    (failure,) = case.iter("failure")
    assert failure.get("type") == "wrong-value"
    assert "not-judged [unknown]" in str(failure.text)


@pytest.mark.parametrize(
    ("verdict", "findings", "tags"),
    [
        ("warn", [], ["system-out"]),
        ("fail", [finding()], ["failure", "system-out"]),
        ("unknown", [], ["error", "system-out"]),
    ],
)
def test_warnings_are_output(verdict: str, findings: list[dict[str, Any]], tags: list[str]) -> None:
    findings = [*findings, finding(id="slow-rank", verdict="warn")]
    (case,) = parsed(prefix=report(phase(verdict=verdict, findings=findings))).iter("testcase")
    assert [child.tag for child in case] == tags
    assert "slow-rank [warn], rank 1" in str(case[-1].text)


def test_omitted_phases_are_skipped() -> None:
    root = parsed(prefix=report(phase(), skipped=["ddp", "checkpoint"]))
    assert [
        case.get("name") for case in root.iter("testcase") if case.find("skipped") is not None
    ] == ["ddp", "checkpoint"]


def test_counts_match_the_cases() -> None:
    smoke_report = report(phase(), phase(verdict="fail", findings=[finding()]), skipped=["ddp"])
    root = parsed(
        prefix=smoke_report, image=report(phase(verdict="unknown"), phase(verdict="warn"))
    )
    assert {
        name: root.get(name) for name in ("tests", "failures", "errors", "skipped", "time")
    } == {
        "tests": "5",
        "failures": "1",
        "errors": "1",
        "skipped": "1",
        "time": "25.000",
    }
    assert [suite.get("name") for suite in root.iter("testsuite")] == ["prefix", "image"]
    for element in [root, *root.iter("testsuite")]:
        assert int(element.get("tests", "")) == len(list(element.iter("testcase")))


@pytest.mark.parametrize("text, expected", [
    ("\x1b[31mred\x00", "\\x1b[31mred\\x00"),
    ("\ud800 half", "\\ud800 half"),
    ("\ufffe", "\\ufffe"),
    ("a ]]> b", "a ]]> b"),
    ("<script>&amp;", "<script>&amp;"),
    ('"quoted"\nsecond line', '"quoted"\nsecond line'),
    ("größer", "größer"),
])  # fmt: skip
def test_any_text_gives_valid_xml(text: str, expected: str) -> None:
    findings = [finding(message=text, advice=text), finding(verdict="warn", message=text)]
    smoke_report = report(
        phase(verdict="fail", name=text, message=text, findings=findings),
        hosts=[text],
        skipped=[text],
    )
    root = parsed(prefix=smoke_report)
    (failure,) = root.iter("failure")
    assert failure.get("message") == expected
    assert expected in str(failure.text)
    assert [case.get("name") for case in root.iter("testcase")] == [expected, expected]
