"""The report while the run is under way: what is finished, and everything else as not finished. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..report import model
from .outcome import Outcome, in_words

if TYPE_CHECKING:
    from collections.abc import Sequence

NOT_FINISHED = "not finished"


def finished(name: str, outcome: Outcome, duration_s: float) -> model.Phase:
    findings = [finding.reported() for finding in outcome.findings]
    return model.Phase(
        name, outcome.verdict, round(duration_s, 3), in_words(outcome), outcome.data, findings
    )


def with_pending(done: Sequence[model.Phase], planned: Sequence[str]) -> list[model.Phase]:
    """Unfinished phases are unknown, so that a report whose writer was killed is never taken for a success."""
    named = {phase.name for phase in done}
    pending = [
        model.Phase(name, model.UNKNOWN, 0.0, NOT_FINISHED, {}, [])
        for name in planned
        if name not in named
    ]
    return [*done, *pending]


def first_pending(unfinished: model.Report) -> str | None:
    return next((phase.name for phase in unfinished.phases if phase.message == NOT_FINISHED), None)


def with_failure(
    unfinished: model.Report, name: str, outcome: Outcome, duration_s: float
) -> model.Report:
    """The report with one phase failed, at its place among the others or, if it is none of them, at their end."""
    failure = finished(name, outcome, duration_s)
    names = [phase.name for phase in unfinished.phases]
    phases = list(unfinished.phases)
    if name in names:
        phases[names.index(name)] = failure
    else:
        phases.append(failure)
    return replace(unfinished, phases=phases)


def with_data(outcome: Outcome, **data: Any) -> Outcome:
    return replace(outcome, data={**outcome.data, **data})
