"""Smoke reports as JUnit XML, for CI services that show tests. Pure: takes the JSON of reports,
returns text.

A phase is a test case. Failed findings become its `failure`, findings that could not be judged its
`error`, and warnings its `system-out`; a skipped phase is `skipped`. CI services read only the
first failure of a case, so one element holds all of its findings.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from .table import SKIPPED, describe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Characters that XML 1.0 forbids, even escaped: most controls and halves of surrogate pairs.
INVALID_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# The element for each verdict that is not a success.
ELEMENTS = {"fail": "failure", "unknown": "error"}
PROPERTIES = ("verdict", "backend", "device", "world_size", "profile")
TOTALS = ("tests", "failures", "errors", "skipped")


def dumps(reports: Mapping[str, Mapping[str, Any]]) -> str:
    """One suite per report, named by its key."""
    totals = dict.fromkeys(TOTALS, 0)
    duration_s = 0.0
    suites = []
    for name, report in reports.items():
        suites.append(_suite(name, report))
        duration_s += report["duration_s"]
        for key, count in _totals(report).items():
            totals[key] += count
    attributes = _attributes(name="smoke", **totals, time=_seconds(duration_s))
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        f"<testsuites{attributes}>\n{''.join(suites)}</testsuites>\n"
    )


def _suite(name: str, report: Mapping[str, Any]) -> str:
    attributes = _attributes(
        name=name,
        **_totals(report),
        time=_seconds(report["duration_s"]),
        timestamp=report["started_at"],
        hostname=" ".join(report["hosts"]),
    )
    lines = [f" <testsuite{attributes}>\n", "  <properties>\n"]
    for key in PROPERTIES:
        lines.append(f"   <property{_attributes(name=key, value=report[key])}/>\n")
    lines.append("  </properties>\n")
    for phase in report["phases"]:
        lines.append(_case(name, phase))
    for skipped in report["skipped"]:
        attributes = _attributes(classname=name, name=skipped, time=_seconds(0))
        lines.append(f"  <testcase{attributes}>\n")
        lines.append(f"   <skipped{_attributes(message=SKIPPED)}/>\n  </testcase>\n")
    lines.append(" </testsuite>\n")
    return "".join(lines)


def _totals(report: Mapping[str, Any]) -> dict[str, int]:
    verdicts = [phase["verdict"] for phase in report["phases"]]
    return {
        "tests": len(verdicts) + len(report["skipped"]),
        "failures": verdicts.count("fail"),
        "errors": verdicts.count("unknown"),
        "skipped": len(report["skipped"]),
    }


def _case(suite: str, phase: Mapping[str, Any]) -> str:
    attributes = _attributes(
        classname=suite, name=phase["name"], time=_seconds(phase["duration_s"])
    )
    bad = [finding for finding in phase["findings"] if finding["verdict"] in ELEMENTS]
    harmless = [finding for finding in phase["findings"] if finding["verdict"] not in ELEMENTS]
    bad.sort(key=lambda finding: finding["verdict"] != "fail")
    element = ELEMENTS.get(phase["verdict"])
    output = _finding_lines(harmless)
    failure = ""
    if element:
        kind = bad[0]["id"] if bad else phase["verdict"]
        text = _escape("\n".join(_finding_lines(bad)))
        failure_attributes = _attributes(type=kind, message=phase["message"])
        failure = f"   <{element}{failure_attributes}>{text}</{element}>\n"
    else:
        output.insert(0, phase["message"])
    system_out = ""
    if any(output):
        system_out = f"   <system-out>{_escape(chr(10).join(output))}</system-out>\n"
    return f"  <testcase{attributes}>\n{failure}{system_out}  </testcase>\n"


def _finding_lines(findings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each finding, and below it its advice."""
    lines = []
    for finding in findings:
        lines.append(describe(finding))
        if finding["advice"]:
            lines.append(f"  -> {finding['advice']}")
    return lines


def _attributes(**values: object) -> str:
    texts = []
    for name, value in values.items():
        # Unescaped, a line break in an attribute is read as a space.
        text = _escape(str(value)).replace('"', "&quot;")
        text = text.replace("\n", "&#10;").replace("\r", "&#13;").replace("\t", "&#9;")
        texts.append(f' {name}="{text}"')
    return "".join(texts)


def _escape(text: str) -> str:
    valid = INVALID_IN_XML.sub(lambda match: match.group().encode("unicode_escape").decode(), text)
    return valid.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f}"
