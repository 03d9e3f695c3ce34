"""What `doctor` found on a host: the JSON document, and the same as lines for people.

The host prints with this what nodes return.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import List, Optional, TypedDict

from . import model
from .table import wrapped
from .text import escape_line, format_count

SCHEMA = 1
KIND = "doctor"
# The columns of the verdict and of what belongs to a finding.
INDENT = 9
NOUNS = {model.FAIL: "fault", model.WARN: "warning", model.UNKNOWN: "unknown result"}


class Evidence(TypedDict):
    """What was read. source: a file, a command or a variable."""

    source: str
    value: str


class ObservedFinding(TypedDict):
    """A finding with its evidence, and what the registry has about it."""

    id: str
    verdict: str
    message: str
    evidence: List[Evidence]
    breaks: str
    advice: str
    command: str
    source: str


class Diagnosis(TypedDict):
    """notes: what this user cannot see, each with the command that shows it. probes: how many ran."""

    schema: int
    kind: str
    verdict: str
    host: str
    prefix: Optional[str]
    is_root: bool
    duration_s: float
    findings: List[ObservedFinding]
    notes: List[List[str]]
    probes: int


def verdict_of(findings: Iterable[ObservedFinding]) -> str:
    return model.overall([model.PASS, *(finding["verdict"] for finding in findings)])


def lines(diagnosis: Diagnosis, width: int | None) -> list[str]:
    """Every finding, the worst first, then what could not be read, then the sum."""
    result = []
    for finding in worst_first(diagnosis["findings"]):
        result += finding_lines(finding, width)
    for message, command in diagnosis["notes"]:
        result += wrapped(f"note     {message}", width, INDENT)
        if command:
            result.append(f"{' ' * INDENT}$ {command}")
    result.append(summary(diagnosis))
    return result


def worst_first(findings: Iterable[ObservedFinding]) -> list[ObservedFinding]:
    return sorted(findings, key=lambda finding: model.WORST_FIRST.index(finding["verdict"]))


def finding_lines(finding: ObservedFinding, width: int | None) -> list[str]:
    text = f"{finding['verdict']:<{INDENT}}{finding['id']}: {escape_line(finding['message'])}"
    result = wrapped(text, width, INDENT)
    margin = " " * INDENT
    parts = [("seen", f"{row['source']}: {row['value']}") for row in finding["evidence"]]
    for label, text in [*parts, ("breaks", finding["breaks"]), ("do", finding["advice"])]:
        if text:
            result += wrapped(f"{margin}{label}: {escape_line(text)}", width, INDENT + 2)
    result += [f"{margin}$ {escape_line(line)}" for line in finding["command"].splitlines()]
    if finding["source"]:
        result.append(f"{margin}source: {finding['source']}")
    return result


def summary(diagnosis: Diagnosis) -> str:
    verdicts = [finding["verdict"] for finding in diagnosis["findings"]]
    counts = [
        format_count(verdicts.count(verdict), noun)
        for verdict, noun in NOUNS.items()
        if verdict in verdicts
    ]
    number = format_count(diagnosis["probes"], "probe")
    subject = escape_line(", ".join(filter(None, (diagnosis["host"], diagnosis["prefix"]))))
    findings = ", ".join(counts) or "no findings"
    return f"{subject}: {findings} ({number}, {diagnosis['duration_s']:.1f} s)"


def fix_lines(findings: Iterable[ObservedFinding]) -> list[str]:
    """The commands as a script to read and copy; nothing runs them."""
    result: list[str] = []
    for finding in worst_first(findings):
        result += [f"# {finding['id']}: {line}" for line in wrapped(finding["advice"], 88, 2)]
        result += [escape_line(command) for command in finding["command"].splitlines()]
    return result or ["# nothing to do"]


def exit_code(verdict: str) -> int:
    """1 if a check failed, or could not be made."""
    return 0 if model.succeeded(verdict) else 1
