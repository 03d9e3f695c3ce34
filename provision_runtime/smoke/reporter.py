"""The report while the run is under way, and who writes it.

Rank 0 rewrites the report after every phase, and prints a line for people. The deputy reports if
rank 0 has ended; a rank without a store reports for itself. `report_phase`, `with_pending`,
`first_pending` and `with_failure` are pure.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from .. import fs
from ..comm.store import StoreLost
from ..report import model, table
from . import postmortem

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .context import RankContext
    from .outcome import Outcome

REPORT_NAME = "report.json"
# The rank that reports if rank 0 cannot.
DEPUTY = 1
NOT_FINISHED = "not finished"


def report_phase(
    name: str, outcome: Outcome, duration_s: float, strict: bool = False
) -> model.ReportedPhase:
    """strict: what works, but slower than it should, is a failure."""
    findings = [finding.reported() for finding in outcome.findings]
    if strict:
        findings = [_strict(finding) for finding in findings]
    verdict = model.overall([model.PASS, *(finding.verdict for finding in findings)])
    return model.ReportedPhase(
        name, verdict, round(duration_s, 3), outcome.summary, outcome.data, findings
    )


def _strict(finding: model.ReportedFinding) -> model.ReportedFinding:
    if finding.verdict == model.WARN and finding.id in model.PERFORMANCE_WARNINGS:
        return replace(finding, verdict=model.FAIL)
    return finding


def with_pending(
    finished: Sequence[model.ReportedPhase], planned: Sequence[str]
) -> list[model.ReportedPhase]:
    """Unfinished phases are unknown, so that a report whose writer was killed never looks like a
    success."""
    phases = list(finished)
    finished_names = {phase.name for phase in finished}
    for name in planned:
        if name not in finished_names:
            phases.append(model.ReportedPhase(name, model.UNKNOWN, 0.0, NOT_FINISHED, {}, []))
    return phases


def first_pending(report: model.Report) -> str | None:
    for phase in report.phases:
        if phase.message == NOT_FINISHED:
            return phase.name
    return None


def with_failure(
    report: model.Report, name: str, outcome: Outcome, duration_s: float
) -> model.Report:
    """The report with one phase failed: at its position, or at the end if it is not among the
    phases."""
    failure = report_phase(name, outcome, duration_s)
    phases = list(report.phases)
    names = [phase.name for phase in phases]
    if name in names:
        phases[names.index(name)] = failure
    else:
        phases.append(failure)
    return replace(report, phases=phases)


def write_report(report: model.Report, out: Path) -> None:
    fs.atomic_write(out / REPORT_NAME, model.dumps(report).encode())


class Reporter:
    """output: the file descriptor of the standard output, which no library writes to."""

    def __init__(self, context: RankContext, output: int) -> None:
        self._context = context
        self._output = output
        self._started = time.monotonic()
        self._started_at = datetime.now(timezone.utc)
        self._finished: list[model.ReportedPhase] = []
        self._last_phase_ended = self._started

    def record(self, phase: model.ReportedPhase) -> None:
        """Adds a finished phase to the report."""
        self._finished.append(phase)
        self._last_phase_ended = time.monotonic()
        self.write()
        if self._is_reporter:
            self._print(phase)
        elif self._is_cut_off(phase) and phase.verdict == model.FAIL:
            self._print(phase, f"rank {self._context.env.rank}: ")

    def write(self) -> None:
        if self._is_reporter:
            write_report(self.current, self._context.options.out)

    def fail(self, name: str, outcome: Outcome) -> None:
        """Reports that the run ends in this phase, whichever rank this is."""
        failed = with_failure(self.current, name, outcome, self._since_last_phase_s)
        write_report(failed, self._context.options.out)
        self._print(next(phase for phase in failed.phases if phase.name == name))

    def say(self, name: str, outcome: Outcome) -> None:
        """Prints what this rank saw of the end of the run, which another rank reports."""
        failed = with_failure(self.current, name, outcome, self._since_last_phase_s)
        phase = next(phase for phase in failed.phases if phase.name == name)
        self._print(phase, f"rank {self._context.env.rank}: ")

    def unfinished(self, name: str) -> str:
        """This phase; the first unfinished one if this phase is in the report already: a rank may
        end after the others know that it has completed a phase, and before it begins the next."""
        if name not in [phase.name for phase in self._finished]:
            return name
        return first_pending(self.current) or name

    def announce(self) -> None:
        """Informs the deputy that rank 0 has reported, so that the deputy, which knows less, does
        not report again."""
        client = self._context.watchdog_client
        try:
            if self._context.env.rank == 0 and client is not None:
                client.set("reported", True)
        except StoreLost:
            return

    @property
    def _since_last_phase_s(self) -> float:
        """How long the run has been in the phase that is not finished."""
        return time.monotonic() - self._last_phase_ended

    @property
    def current(self) -> model.Report:
        """The report of the run until now."""
        context = self._context
        return model.Report(
            started_at=self._started_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            duration_s=round(time.monotonic() - self._started, 3),
            backend=context.backend,
            device=context.device,
            world_size=context.env.world_size,
            hosts=context.hosts or [context.env.host],
            profile=context.options.profile,
            skipped=list(context.options.skipped),
            facts=context.facts,
            phases=with_pending(self._finished, context.options.planned),
        )

    def _is_cut_off(self, phase: model.ReportedPhase) -> bool:
        """Whether no other rank reports what this one sees. Without a store every rank prints its
        view; after the store was lost, one rank of each host does. Our launcher, which knows more,
        does so itself."""
        context = self._context
        if context.all_gather is None:
            return True
        is_lost = any(finding.id == "store-lost" for finding in phase.findings)
        return is_lost and context.is_first_of_host and not context.env.launched

    @property
    def _is_reporter(self) -> bool:
        """Rank 0 reports; its deputy if a finding says that rank 0 has ended."""
        rank = self._context.env.rank
        for phase in self._finished:
            for finding in phase.findings:
                if 0 in finding.ranks and finding.id in postmortem.ABSENCES:
                    return rank == DEPUTY
        return rank == 0

    def _print(self, phase: model.ReportedPhase, prefix: str = "") -> None:
        lines = table.phase_lines(asdict(phase), table.terminal_width(self._output))
        os.write(self._output, "".join(f"{prefix}{line}\n" for line in lines).encode())
