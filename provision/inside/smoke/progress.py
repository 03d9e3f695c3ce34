"""The report while the run is under way: what is finished, and everything else as not finished. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .. import report
from .options import PHASES

if TYPE_CHECKING:
    from collections.abc import Sequence

NOT_FINISHED = "not finished"


def with_pending(finished: Sequence[report.Phase]) -> list[report.Phase]:
    """Unfinished phases are unknown, so that a report whose writer was killed is never taken for a success."""
    done = {phase.name for phase in finished}
    pending = [report.Phase(name, report.UNKNOWN, 0.0, NOT_FINISHED, "", {}) for name in PHASES if name not in done]
    return [*finished, *pending]


def first_pending(unfinished: report.Report) -> str | None:
    return next((phase.name for phase in unfinished.phases if phase.message == NOT_FINISHED), None)


def with_failure(unfinished: report.Report, name: str, message: str, data: dict[str, Any], duration_s: float) -> report.Report:
    """The report with one phase failed, at its place among the others or, if it is none of them, at their end."""
    failure = report.Phase(name, report.FAIL, duration_s, message, "see rank*.stuck.json and rank*.log", data)
    names = [phase.name for phase in unfinished.phases]
    phases = list(unfinished.phases)
    if name in names:
        phases[names.index(name)] = failure
    else:
        phases.append(failure)
    return replace(unfinished, phases=phases)
