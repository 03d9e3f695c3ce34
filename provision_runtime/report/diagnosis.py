"""What `doctor` found on a host: the JSON document, and the same as lines for people.

The host prints with this what nodes answer.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from . import model
from .findings import CATALOG
from .table import wrapped
from .text import escape_line, format_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SCHEMA = 1
KIND = "doctor"
# The exit codes of monitoring plug-ins (Nagios, Icinga): OK, WARNING, CRITICAL, UNKNOWN.
NAGIOS = {model.PASS: 0, model.WARN: 1, model.FAIL: 2, model.UNKNOWN: 3}
NAGIOS_WORDS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
# The columns of the verdict and of what belongs to a finding.
INDENT = 9


@dataclass(frozen=True)
class Evidence:
    """What was seen. source: a file, a command or a variable."""

    source: str
    value: str


@dataclass(frozen=True)
class ObservedFinding:
    id: str
    verdict: str
    message: str
    evidence: list[Evidence]
    breaks: str
    advice: str
    command: str
    source: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> ObservedFinding:
        evidence = [Evidence(**item) for item in document["evidence"]]
        return ObservedFinding(**{**document, "evidence": evidence})


@dataclass(frozen=True)
class ProbeRun:
    """state: done, late or failed."""

    name: str
    state: str
    duration_s: float


@dataclass(frozen=True)
class Diagnosis:
    """notes: what this user cannot see, each with the command that shows it."""

    host: str
    prefix: str | None
    is_root: bool
    duration_s: float
    findings: list[ObservedFinding]
    notes: list[list[str]]
    probes: list[ProbeRun]

    @property
    def verdict(self) -> str:
        return model.overall([model.PASS, *(finding.verdict for finding in self.findings)])


def document(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "kind": KIND,
        "verdict": diagnosis.verdict,
        **asdict(diagnosis),
    }


def lines(document: Mapping[str, Any], width: int | None) -> list[str]:
    """Every finding, the worst first, then what could not be seen, then the sum."""
    result = []
    for finding in worst_first(document["findings"]):
        result += finding_lines(finding, width)
    for message, command in document["notes"]:
        result += wrapped(f"note     {message}", width, INDENT)
        if command:
            result.append(f"{' ' * INDENT}$ {command}")
    result.append(summary(document))
    return result


def worst_first(findings: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted(findings, key=lambda finding: model.WORST_FIRST.index(finding["verdict"]))


def finding_lines(finding: Mapping[str, Any], width: int | None) -> list[str]:
    text = f"{finding['verdict']:<{INDENT}}{finding['id']}: {escape_line(finding['message'])}"
    result = wrapped(text, width, INDENT)
    margin = " " * INDENT
    for evidence in finding["evidence"]:
        evidence_text = (
            f"{margin}seen: {escape_line(evidence['source'])}: {escape_line(evidence['value'])}"
        )
        result += wrapped(evidence_text, width, INDENT + 2)
    if finding["breaks"]:
        result += wrapped(f"{margin}breaks: {finding['breaks']}", width, INDENT + 2)
    result += wrapped(f"{margin}do: {finding['advice']}", width, INDENT + 2)
    for command in finding["command"].splitlines():
        result.append(f"{margin}$ {escape_line(command)}")
    if finding["source"]:
        result.append(f"{margin}source: {finding['source']}")
    return result


def summary(document: Mapping[str, Any]) -> str:
    counts = []
    for verdict, noun in (
        (model.FAIL, "fault"),
        (model.WARN, "warning"),
        (model.UNKNOWN, "unknown"),
    ):
        count = sum(finding["verdict"] == verdict for finding in document["findings"])
        if count:
            counts.append(f"{count} unknown" if noun == "unknown" else format_count(count, noun))
    number = format_count(len(document["probes"]), "probe")
    subject = (
        f"{document['host']}, {document['prefix']}" if document["prefix"] else document["host"]
    )
    counts_text = ", ".join(counts) or "no findings"
    return f"{escape_line(subject)}: {counts_text} ({number}, {document['duration_s']:.1f} s)"


def fix_lines(findings: Iterable[Mapping[str, Any]]) -> list[str]:
    """The commands as a script to read and copy; nothing runs them."""
    result: list[str] = []
    for finding in worst_first(findings):
        result += [f"# {finding['id']}: {line}" for line in wrapped(finding["advice"], 88, 2)]
        result += [escape_line(command) for command in finding["command"].splitlines()]
    return result or ["# nothing to do"]


def explain_lines(id: str, width: int | None) -> list[str]:
    """What the registry says about a finding. Raises KeyError for an unknown id."""
    rule = CATALOG[id]
    parts = [("means", rule.meaning), ("breaks", rule.breaks), ("do", rule.advice)]
    result = [f"{id} ({rule.verdict})"]
    for label, text in parts:
        if text:
            result += wrapped(f"  {label}: {text}", width, 4)
    result += [f"  $ {command}" for command in rule.command.splitlines()]
    if rule.source:
        result.append(f"  source: {rule.source}")
    return result


def nagios_line(document: Mapping[str, Any]) -> str:
    """One line, as monitoring expects it: the state, then each finding."""
    code = nagios_code(document["verdict"])
    texts = [f"{each['id']}: {each['message']}" for each in worst_first(document["findings"])]
    text = "; ".join(texts) or "no findings"
    # A bar would begin performance data.
    return f"DOCTOR {NAGIOS_WORDS[code]} - {escape_line(text).replace('|', '/')}"


def nagios_code(verdict: str) -> int:
    return NAGIOS[verdict]


def exit_code(verdict: str) -> int:
    """As everywhere: 1 if a check failed, or could not be made."""
    return 0 if model.succeeded(verdict) else 1
