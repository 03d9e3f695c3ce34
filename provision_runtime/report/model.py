"""The JSON report that `inside` writes and the host reads: its fields, its verdicts and how it reaches the disk.

Owns the contract (schema 2) only. What a phase measures is the phase's own business and lives in its `data`.
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
# From the worst to the best. Unknown outranks warn: what could not be asked is never a success.
WORST_FIRST = (FAIL, UNKNOWN, WARN, PASS)


class ReportUnreadable(ValueError):
    """The text is not a report of the schema this code knows."""


@dataclass(frozen=True)
class Finding:
    """Something wrong: an id of the catalog (smoke/findings.py), how bad, on which ranks, and what to do."""

    id: str
    verdict: str
    ranks: list[int]
    message: str
    advice: str


@dataclass(frozen=True)
class Phase:
    name: str
    verdict: str
    duration_s: float
    message: str
    data: dict[str, Any]
    findings: list[Finding]


@dataclass(frozen=True)
class Report:
    started_at: str
    duration_s: float
    backend: str
    device: str
    world_size: int
    hosts: list[str]
    profile: str
    # Phases that the user left out.
    skipped: list[str]
    facts: dict[str, Any]
    phases: list[Phase]

    @property
    def verdict(self) -> str:
        return overall(phase.verdict for phase in self.phases)


def overall(verdicts: Iterable[str]) -> str:
    """The worst of them; no verdict at all is unknown."""
    found = list(verdicts)
    _refuse_foreign(found)
    return next((verdict for verdict in WORST_FIRST if verdict in found), UNKNOWN)


def succeeded(verdict: str) -> bool:
    return verdict in (PASS, WARN)


def document(report: Report) -> dict[str, Any]:
    return {"schema": SCHEMA, "kind": KIND, "verdict": report.verdict, **asdict(report)}


def dumps(report: Report) -> str:
    return json.dumps(document(report), indent=2, allow_nan=False) + "\n"


def loads(text: str) -> Report:
    try:
        return _report(json.loads(text))
    except (KeyError, TypeError, ValueError) as error:
        raise ReportUnreadable(
            f"not a smoke report of schema {SCHEMA}: {type(error).__name__}: {error}"
        ) from error


def _report(document: dict[str, Any]) -> Report:
    _refuse_other_schema(document)
    fields = {name: document[name] for name in Report.__dataclass_fields__ if name != "phases"}
    report = Report(phases=[_phase(phase) for phase in document["phases"]], **fields)
    if document["verdict"] != report.verdict:
        raise ValueError(f"it says {document['verdict']!r}, but its phases say {report.verdict!r}")
    return report


def _phase(document: dict[str, Any]) -> Phase:
    return Phase(
        **{**document, "findings": [Finding(**finding) for finding in document["findings"]]}
    )


def _refuse_other_schema(document: Any) -> None:
    if not isinstance(document, dict):
        raise TypeError("the document is not an object")
    if (document["schema"], document["kind"]) != (SCHEMA, KIND):
        raise ValueError(f"schema {document['schema']!r} of kind {document['kind']!r}")


def _refuse_foreign(verdicts: list[str]) -> None:
    foreign = sorted(set(verdicts) - set(WORST_FIRST))
    if foreign:
        raise ValueError(
            f"no such verdict: {', '.join(foreign)}; there are {', '.join(WORST_FIRST)}"
        )
