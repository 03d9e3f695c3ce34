"""What a probe is, and what it returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, Iterator, List, NamedTuple, TypedDict, Union

from ..dataclass import frozen
from ..report.diagnosis import Evidence, ObservedFinding
from ..report.findings import CATALOG, Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .machine import Machine

DEADLINE_S = 2.0


class Limitation(NamedTuple):
    """What could not be read, and the command with which root or another user can."""

    message: str
    command: str = ""


Findings = Iterator[ObservedFinding]
Result = Union[ObservedFinding, Limitation]


class ProbeResult(TypedDict, total=False):
    """What a probe's process returns. failure: why it has neither findings nor notes; waits_in: the
    function of the kernel, of one that did not end in time."""

    findings: List[ObservedFinding]
    notes: List[List[str]]
    failure: str
    waits_in: str


# By name, what the probes of a module run. findings.json has what each can report.
Probes = Dict[str, "Callable[[Machine], Iterable[Result]]"]


@frozen
class Probe:
    """ids: all findings that it can report."""

    name: str
    ids: Sequence[str]
    run: Callable[[Machine], Iterable[Result]]
    deadline_s: float = DEADLINE_S
    needs_prefix: bool = False


def observe(probe: Probe, machine: Machine) -> ProbeResult:
    findings: list[ObservedFinding] = []
    notes = []
    for result in probe.run(machine):
        if isinstance(result, Limitation):
            notes.append(list(result))
            continue
        assert result["id"] in probe.ids, result["id"]
        findings.append(result)
    return {"findings": findings, "notes": notes}


def observation(
    id: str, message: str, source: str, value: object, command: str = "", advice: str = ""
) -> ObservedFinding:
    """A finding with one piece of evidence. command, advice: more exact than the registry's."""
    rule = CATALOG[id]
    return ObservedFinding(
        id=id,
        verdict=rule.verdict,
        message=message,
        evidence=[Evidence(source=source, value=str(value))],
        breaks=rule.breaks,
        advice=advice or rule.advice,
        command=command or rule.command,
        source=rule.source,
    )


def judged(finding: Finding | None, source: str, value: object, command: str = "") -> Findings:
    """What a judge of facts returned, with one piece of evidence; nothing if all is well."""
    if finding is not None:
        yield observation(finding.id, finding.message, source, value, command, finding.advice)
