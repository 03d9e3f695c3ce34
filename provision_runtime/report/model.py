"""The JSON report that the smoke test writes and the host reads: its fields and verdicts.

Owns only the contract (schema 2). Each phase defines its own `data`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

SCHEMA = 2
KIND = "smoke"

PASS = "pass"
WARN = "warn"
FAIL = "fail"
UNKNOWN = "unknown"
# Unknown outranks warn: what could not be checked is never a success.
WORST_FIRST = (FAIL, UNKNOWN, WARN, PASS)


class ReportUnreadable(ValueError):
    """The text is not a report of the schema that this code reads."""


@dataclass(frozen=True)
class ReportedFinding:
    """A problem: its id in the catalog (smoke/findings.py), the verdict, the ranks, what happened,
    and what to do."""

    id: str
    verdict: str
    ranks: list[int]
    message: str
    advice: str


@dataclass(frozen=True)
class ReportedPhase:
    name: str
    verdict: str
    duration_s: float
    message: str
    data: dict[str, Any]
    findings: list[ReportedFinding]


@dataclass(frozen=True)
class Report:
    started_at: str
    duration_s: float
    backend: str
    device: str
    world_size: int
    hosts: list[str]
    profile: str
    # Phases that the user skipped.
    skipped: list[str]
    facts: dict[str, Any]
    phases: list[ReportedPhase]

    @property
    def verdict(self) -> str:
        return overall(phase.verdict for phase in self.phases)


def overall(verdicts: Iterable[str]) -> str:
    """The worst of them; unknown if there are none. Raises ValueError for any other text."""
    present = set(verdicts)
    invalid = sorted(present - set(WORST_FIRST))
    if invalid:
        raise ValueError(
            f"unknown verdict: {', '.join(invalid)}; use one of {', '.join(WORST_FIRST)}"
        )
    for verdict in WORST_FIRST:
        if verdict in present:
            return verdict
    return UNKNOWN


def succeeded(verdict: str) -> bool:
    return verdict in (PASS, WARN)


def document(report: Report) -> dict[str, Any]:
    return {"schema": SCHEMA, "kind": KIND, "verdict": report.verdict, **asdict(report)}


def dumps(report: Report) -> str:
    return json.dumps(document(report), indent=2, allow_nan=False) + "\n"


def loads(text: str) -> Report:
    """Raises ReportUnreadable."""
    try:
        return _parse_report(json.loads(text))
    except (KeyError, TypeError, ValueError) as error:
        raise ReportUnreadable(
            f"not a smoke report of schema {SCHEMA}: {type(error).__name__}: {error}"
        ) from error


def _parse_report(content: Any) -> Report:
    if not isinstance(content, dict):
        raise TypeError("the document is not an object")
    if (content["schema"], content["kind"]) != (SCHEMA, KIND):
        raise ValueError(f"schema {content['schema']!r} of kind {content['kind']!r}")
    fields = {name: content[name] for name in Report.__dataclass_fields__ if name != "phases"}
    report = Report(phases=[_parse_phase(phase) for phase in content["phases"]], **fields)
    if content["verdict"] != report.verdict:
        raise ValueError(
            f"its verdict is {content['verdict']!r}, but that of its phases is {report.verdict!r}"
        )
    return report


def _parse_phase(content: dict[str, Any]) -> ReportedPhase:
    findings = [ReportedFinding(**finding) for finding in content["findings"]]
    return ReportedPhase(**{**content, "findings": findings})
