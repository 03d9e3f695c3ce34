"""What a probe is, and what it returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, List, TypedDict, Union

from ..report.diagnosis import Evidence, ObservedFinding
from ..report.findings import CATALOG, Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .machine import Machine

DEADLINE_S = 2.0
DEEP_DEADLINE_S = 8.0


@dataclass(frozen=True)
class Observation:
    """A finding with its evidence. command: more exact than the registry's."""

    finding: Finding
    evidence: list[Evidence]
    command: str = ""

    def reported(self) -> ObservedFinding:
        rule = CATALOG[self.finding.id]
        return ObservedFinding(
            id=self.finding.id,
            verdict=rule.verdict,
            message=self.finding.message,
            evidence=self.evidence,
            breaks=rule.breaks,
            advice=self.finding.advice or rule.advice,
            command=self.command or rule.command,
            source=rule.source,
        )


@dataclass(frozen=True)
class Limitation:
    """What could not be read, and the command with which root or another user can."""

    message: str
    command: str = ""


Result = Union[Observation, Limitation]


class ProbeResult(TypedDict, total=False):
    """What a probe's process returns. failure: why it has neither findings nor notes."""

    findings: List[ObservedFinding]
    notes: List[List[str]]
    failure: str


@dataclass(frozen=True)
class Probe:
    """ids: all findings that it can report. deep: runs only on request."""

    name: str
    ids: tuple[str, ...]
    run: Callable[[Machine], Iterable[Result]]
    deadline_s: float = DEADLINE_S
    deep_deadline_s: float = DEEP_DEADLINE_S
    needs_prefix: bool = False
    deep: bool = False

    def limit_s(self, machine: Machine) -> float:
        return self.deep_deadline_s if machine.is_deep else self.deadline_s


def observe(probe: Probe, machine: Machine) -> ProbeResult:
    findings, notes = [], []
    for result in probe.run(machine):
        if isinstance(result, Limitation):
            notes.append([result.message, result.command])
            continue
        assert result.finding.id in probe.ids, result.finding.id
        findings.append(result.reported())
    return {"findings": findings, "notes": notes}


def observation(
    finding_id: str, message: str, source: str, value: object, command: str = ""
) -> Observation:
    """An observation with one piece of evidence."""
    return Observation(
        Finding(finding_id, message), [Evidence(source=source, value=str(value))], command
    )


def judged(
    finding: Finding | None, source: str, value: object, command: str = ""
) -> list[Observation]:
    """What a judge of facts returned, with one piece of evidence; nothing if all is well."""
    if finding is None:
        return []
    return [Observation(finding, [Evidence(source=source, value=str(value))], command)]
