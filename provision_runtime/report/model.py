"""The JSON report that the smoke test writes and the host reads: its fields and verdicts.

Owns only the contract (schema 2). Each phase defines its own `data`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Dict, List

from ..dataclass import frozen
from .codec import decode
from .credentials import public_document

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


@frozen
class ReportedFinding:
    """A problem: its id in the catalog (findings.py), the verdict, the ranks, what happened,
    and what to do."""

    id: str
    verdict: str
    ranks: List[int]
    message: str
    advice: str


@frozen
class ReportedPhase:
    """A phase of the test, its verdict and what it measured."""

    name: str
    verdict: str
    duration_s: float
    message: str
    data: Dict[str, Any]
    findings: List[ReportedFinding]


@frozen
class Report:
    """The report of a smoke test."""

    started_at: str
    duration_s: float
    backend: str
    device: str
    world_size: int
    hosts: List[str]
    profile: str
    # Phases that the user skipped.
    skipped: List[str]
    facts: Dict[str, Any]
    phases: List[ReportedPhase]

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
    return json.dumps(public_document(document(report)), indent=2, allow_nan=False) + "\n"


def loads(text: str) -> Report:
    """Raises ReportUnreadable, with the entry and the field."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ReportUnreadable(f"not JSON: {error}") from error
    return parse(content)


def parse(content: Any) -> Report:
    """The report that a JSON document holds. Raises ReportUnreadable."""
    try:
        if not isinstance(content, dict):
            raise ValueError("it is not an object")
        fields = dict(content)
        schema, kind, verdict = (fields.pop(name, None) for name in ("schema", "kind", "verdict"))
        if (schema, kind) != (SCHEMA, KIND):
            raise ValueError(f"it has schema {schema!r} and kind {kind!r}")
        report: Report = decode(Report, fields, "report")
        overall(finding.verdict for phase in report.phases for finding in phase.findings)
        if verdict != report.verdict:
            raise ValueError(
                f"its verdict is {verdict!r}, but that of its phases is {report.verdict!r}"
            )
    except ValueError as error:
        raise ReportUnreadable(f"not a smoke report of schema {SCHEMA}: {error}") from error
    return report
