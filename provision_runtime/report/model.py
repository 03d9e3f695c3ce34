"""The JSON report that the smoke test writes and the host reads: its fields and verdicts.

Owns only the contract (schema 2). Each phase defines its own `data`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from .credentials import public_document

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

# Findings that say that time passed, or that something was busy: the node may only be slow.
TIME_FINDINGS = frozenset(
    ("deadline-passed", "time-over", "rank-stuck", "rank-missing", "interrupted", "port-busy")
)
# Warnings that something works, but slower than it should. With --set strict=true they are failures.
PERFORMANCE_WARNINGS = frozenset(
    ("bandwidth-reduced", "baseline-regressed", "compute-straggler", "slow-rank")
)
# Findings about the hardware or the network of a node, for which taking it out of service can be
# right. Those about its environment, its settings or a shared folder are not: they are mended
# otherwise, or are not the node's.
NODE_FAULTS = frozenset(
    (
        "backend-error",
        "bandwidth-low",
        "folder-error",
        "folder-unmounted",
        "gpu-lost",
        "gpu-missing",
        "gradient-mismatch",
        "link-lost",
        "not-deterministic",
        "peer-unreachable",
        "rank-died",
        "rank-silent",
        "store-filtered",
        "store-unreachable",
        "wrong-product",
        "wrong-result",
        "wrong-value",
    )
)


# What the fields of the JSON hold. The published schema, with which the host checks, says more.
_TYPES = {
    "a text": (str,),
    "an integer": (int,),
    "a number": (int, float),
    "a list": (list,),
    "an object": (dict,),
}
_REPORT_FIELDS = {
    "schema": "an integer",
    "kind": "a text",
    "verdict": "a text",
    "started_at": "a text",
    "duration_s": "a number",
    "backend": "a text",
    "device": "a text",
    "world_size": "an integer",
    "hosts": "a list",
    "profile": "a text",
    "skipped": "a list",
    "facts": "an object",
    "phases": "a list",
}
_PHASE_FIELDS = {
    "name": "a text",
    "verdict": "a text",
    "duration_s": "a number",
    "message": "a text",
    "data": "an object",
    "findings": "a list",
}
_FINDING_FIELDS = {
    "id": "a text",
    "verdict": "a text",
    "ranks": "a list",
    "message": "a text",
    "advice": "a text",
}


class ReportUnreadable(ValueError):
    """The text is not a report of the schema that this code reads."""


@dataclass(frozen=True)
class ReportedFinding:
    """A problem: its id in the catalog (report/findings), the verdict, the ranks, what happened,
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
    if isinstance(content, dict):
        schema, kind = content.get("schema"), content.get("kind")
        if (schema, kind) != (SCHEMA, KIND):
            raise _unreadable(f"it has schema {schema!r} and kind {kind!r}")
    _check_fields(content, "the top level", _REPORT_FIELDS)
    for name in ("hosts", "skipped"):
        _check_items(content[name], name, str)
    phases = []
    for number, entry in enumerate(content["phases"]):
        phases.append(_parse_phase(entry, f"phases[{number}]"))
    fields = {name: content[name] for name in Report.__dataclass_fields__ if name != "phases"}
    report = Report(phases=phases, **fields)
    if content["verdict"] != report.verdict:
        raise _unreadable(
            f"its verdict is {content['verdict']!r}, but that of its phases is {report.verdict!r}"
        )
    return report


def _parse_phase(content: Any, entry: str) -> ReportedPhase:
    _check_fields(content, entry, _PHASE_FIELDS)
    findings = []
    for number, fields in enumerate(content["findings"]):
        finding_entry = f"{entry}.findings[{number}]"
        _check_fields(fields, finding_entry, _FINDING_FIELDS)
        _check_items(fields["ranks"], f"{finding_entry}.ranks", int)
        findings.append(ReportedFinding(**fields))
    return ReportedPhase(**{**content, "findings": findings})


def _check_fields(content: Any, entry: str, fields: dict[str, str]) -> None:
    """Raise ReportUnreadable unless this is an object with exactly these fields."""
    if not isinstance(content, dict):
        raise _unreadable(f"at {entry}: it is not an object")
    for name, kind in fields.items():
        if name not in content:
            raise _unreadable(f"at {entry}: the field {name} is missing")
        value = content[name]
        if not isinstance(value, _TYPES[kind]) or isinstance(value, bool):
            raise _unreadable(f"at {entry}: the field {name} is {value!r}, not {kind}")
        if name == "verdict" and value not in WORST_FIRST:
            raise _unreadable(f"at {entry}: the verdict is {value!r}")
    for name in content:
        if name not in fields:
            raise _unreadable(f"at {entry}: there is no field {name}")


def _check_items(values: list[Any], entry: str, kind: type) -> None:
    for number, value in enumerate(values):
        if not isinstance(value, kind) or isinstance(value, bool):
            raise _unreadable(f"at {entry}[{number}]: it is {value!r}")


def _unreadable(problem: str) -> ReportUnreadable:
    return ReportUnreadable(f"not a smoke report of schema {SCHEMA}: {problem}")
