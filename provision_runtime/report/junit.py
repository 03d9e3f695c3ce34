"""Smoke reports as JUnit XML, for CI services that show tests. Pure: takes reports, returns text.

A phase is a test case. Failed findings become its `failure`, findings that could not be judged its
`error`, and warnings its `system-out`; a skipped phase is `skipped`. CI services read only the
first failure of a case, so one element holds all of its findings.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element, SubElement, tostring

from .table import SKIPPED, describe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .model import Report, ReportedFinding, ReportedPhase

# Characters that XML 1.0 forbids, even escaped: most controls and halves of surrogate pairs.
INVALID_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# The element for each verdict that is not a success.
ELEMENTS = {"fail": "failure", "unknown": "error"}
TOTALS = {"tests": "testcase", "failures": "failure", "errors": "error", "skipped": "skipped"}


def dumps(reports: Mapping[str, Report]) -> str:
    """One suite per report, named by its key."""
    seconds = sum(report.duration_s for report in reports.values())
    root = Element("testsuites", name="smoke", time=f"{seconds:.3f}")
    for name, report in reports.items():
        _add_suite(root, name, report)
    for element in (root, *root):
        for total, tag in TOTALS.items():
            element.set(total, str(len(list(element.iter(tag)))))
    for element in root.iter():
        element.tail = "\n"
    return f'<?xml version="1.0" encoding="utf-8"?>\n{tostring(root, encoding="unicode")}'


def _add_suite(root: Element, name: str, report: Report) -> None:
    suite = _add(
        root,
        "testsuite",
        name=name,
        time=f"{report.duration_s:.3f}",
        timestamp=report.started_at,
        hostname=" ".join(report.hosts),
    )
    properties = _add(suite, "properties")
    for key in ("verdict", "backend", "device", "world_size", "profile"):
        _add(properties, "property", name=key, value=str(getattr(report, key)))
    for phase in report.phases:
        seconds = f"{phase.duration_s:.3f}"
        _fill_case(_add(suite, "testcase", classname=name, name=phase.name, time=seconds), phase)
    for phase_name in report.skipped:
        case = _add(suite, "testcase", classname=name, name=phase_name, time="0.000")
        _add(case, "skipped", message=SKIPPED)


def _fill_case(case: Element, phase: ReportedPhase) -> None:
    bad = [finding for finding in phase.findings if finding.verdict in ELEMENTS]
    bad.sort(key=lambda finding: finding.verdict != "fail")
    output = _finding_lines([finding for finding in phase.findings if finding not in bad])
    if phase.verdict in ELEMENTS:
        kind = bad[0].id if bad else phase.verdict
        element = _add(case, ELEMENTS[phase.verdict], type=kind, message=phase.message)
        element.text = _valid("\n".join(_finding_lines(bad)))
    else:
        output.insert(0, phase.message)
    if any(output):
        _add(case, "system-out").text = _valid("\n".join(output))


def _finding_lines(findings: Sequence[ReportedFinding]) -> list[str]:
    """Each finding, and below it its advice."""
    lines = []
    for finding in findings:
        lines.append(describe(finding))
        if finding.advice:
            lines.append(f"  -> {finding.advice}")
    return lines


def _add(parent: Element, tag: str, **attributes: str) -> Element:
    return SubElement(parent, tag, {name: _valid(value) for name, value in attributes.items()})


def _valid(text: str) -> str:
    return INVALID_IN_XML.sub(lambda match: match.group().encode("unicode_escape").decode(), text)
