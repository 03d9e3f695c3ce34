"""Smoke reports as JUnit XML, for CI services that show tests. Pure: the JSON of reports in, a text out.

A phase is a test case. What fails in it is its `failure`, what could not be judged its `error`, and warnings are its
`system-out`; a phase that was left out is `skipped`. CI services read only the first failure of a case, so one element
holds all of its findings.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from .table import NOT_RUN, in_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# What XML 1.0 cannot hold, not even escaped: most control characters and halves of surrogate pairs.
UNSPEAKABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
ELEMENTS = {"fail": "failure", "unknown": "error"}


def dumps(reports: Mapping[str, Mapping[str, Any]]) -> str:
    """One suite per report, under the name that it is given."""
    suites = [_suite(name, report) for name, report in reports.items()]
    totals = [_totals(report) for report in reports.values()]
    whole = {
        name: sum(one[name] for one in totals)
        for name in ("tests", "failures", "errors", "skipped")
    }
    seconds = sum(report["duration_s"] for report in reports.values())
    body = "".join(suites)
    return f'<?xml version="1.0" encoding="utf-8"?>\n<testsuites{_attributes(name="smoke", **whole, time=_s(seconds))}>\n{body}</testsuites>\n'


def _suite(name: str, report: Mapping[str, Any]) -> str:
    about = _attributes(
        name=name,
        **_totals(report),
        time=_s(report["duration_s"]),
        timestamp=report["started_at"],
        hostname=" ".join(report["hosts"]),
    )
    told = "".join(
        f"   <property{_attributes(name=key, value=report[key])}/>\n" for key in _PROPERTIES
    )
    cases = [_case(name, phase) for phase in report["phases"]] + [
        _left_out(name, phase) for phase in report["skipped"]
    ]
    return f" <testsuite{about}>\n  <properties>\n{told}  </properties>\n{''.join(cases)} </testsuite>\n"


_PROPERTIES = ("verdict", "backend", "device", "world_size", "profile")


def _totals(report: Mapping[str, Any]) -> dict[str, int]:
    verdicts = [phase["verdict"] for phase in report["phases"]]
    return {
        "tests": len(verdicts) + len(report["skipped"]),
        "failures": verdicts.count("fail"),
        "errors": verdicts.count("unknown"),
        "skipped": len(report["skipped"]),
    }


def _case(suite: str, phase: Mapping[str, Any]) -> str:
    about = _attributes(classname=suite, name=phase["name"], time=_s(phase["duration_s"]))
    element = ELEMENTS.get(phase["verdict"])
    bad = [finding for finding in phase["findings"] if finding["verdict"] in ELEMENTS]
    bad.sort(key=lambda finding: finding["verdict"] != "fail")
    told = _element(element, phase, bad) if element else ""
    said = [phase["message"]] if element is None else []
    said += _told(finding for finding in phase["findings"] if finding["verdict"] not in ELEMENTS)
    out = f"   <system-out>{_text(chr(10).join(said))}</system-out>\n" if any(said) else ""
    return f"  <testcase{about}>\n{told}{out}  </testcase>\n"


def _element(element: str, phase: Mapping[str, Any], findings: list[Any]) -> str:
    kind = findings[0]["id"] if findings else phase["verdict"]
    return f"   <{element}{_attributes(type=kind, message=phase['message'])}>{_text(chr(10).join(_told(findings)))}</{element}>\n"


def _told(findings: Iterable[Mapping[str, Any]]) -> list[str]:
    """Each finding, and below it what to do."""
    return [
        line
        for finding in findings
        for line in (
            in_words(finding),
            *([f"  -> {finding['advice']}"] if finding["advice"] else []),
        )
    ]


def _left_out(suite: str, name: str) -> str:
    return f"  <testcase{_attributes(classname=suite, name=name, time='0.000')}>\n   <skipped{_attributes(message=NOT_RUN)}/>\n  </testcase>\n"


def _attributes(**values: object) -> str:
    return "".join(f' {name}="{_quoted(str(value))}"' for name, value in values.items())


def _quoted(text: str) -> str:
    """Without this, a line break in an attribute is read as a space."""
    return (
        _text(text)
        .replace('"', "&quot;")
        .replace("\n", "&#10;")
        .replace("\r", "&#13;")
        .replace("\t", "&#9;")
    )


def _text(text: str) -> str:
    return _speakable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _speakable(text: str) -> str:
    return UNSPEAKABLE.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def _s(seconds: float) -> str:
    return f"{seconds:.3f}"
