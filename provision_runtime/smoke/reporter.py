"""The report while the run is under way, and who writes it.

Rank 0 rewrites the report after every phase, and prints a line for people. A rank without a store
reports for itself. `report_phase`, `with_pending`,
`first_pending` and `with_failure` are pure.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from .. import fs
from ..report import model, table
from ..report.findings import PERFORMANCE_WARNINGS
from .context import RankContext
from .outcome import Finding, Outcome

REPORT_NAME = "report.json"
NOT_FINISHED = "not finished"


def report_phase(
    name: str, outcome: Outcome, duration_s: float, strict: bool = False
) -> model.ReportedPhase:
    """strict: what works, but slower than it should, is a failure."""
    findings = []
    for finding in outcome.findings:
        reported = finding.reported()
        if strict and reported.verdict == model.WARN and finding.id in PERFORMANCE_WARNINGS:
            reported = replace(reported, verdict=model.FAIL)
        findings.append(reported)
    verdict = model.overall([model.PASS, *(finding.verdict for finding in findings)])
    return model.ReportedPhase(
        name, verdict, round(duration_s, 3), outcome.summary, outcome.data, findings
    )


def with_pending(
    finished: Sequence[model.ReportedPhase], planned: Sequence[str]
) -> list[model.ReportedPhase]:
    """Unfinished phases are unknown, so that a report whose writer was killed never looks like a
    success."""
    finished_names = {phase.name for phase in finished}
    pending = [name for name in planned if name not in finished_names]
    return [
        *finished,
        *(model.ReportedPhase(name, model.UNKNOWN, 0.0, NOT_FINISHED, {}, []) for name in pending),
    ]


def first_pending(report: model.Report) -> str | None:
    for phase in report.phases:
        if phase.message == NOT_FINISHED:
            return phase.name
    return None


def with_failure(
    report: model.Report, name: str, outcome: Outcome, duration_s: float
) -> tuple[model.Report, model.ReportedPhase]:
    """The report with one phase failed: at its position, or at the end if it is not among the
    phases."""
    failure = report_phase(name, outcome, duration_s)
    phases = [failure if phase.name == name else phase for phase in report.phases]
    if failure not in phases:
        phases.append(failure)
    return replace(report, phases=phases), failure


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

    def record(self, name: str, outcome: Outcome, duration_s: float) -> None:
        phase = report_phase(name, outcome, duration_s, self._context.options.strict)
        self._finished.append(phase)
        self._last_phase_ended = time.monotonic()
        self.write()
        context = self._context
        # A rank prints what no other one reports. Without a store every rank prints its view; after
        # the store was lost, one rank of each host does. Our launcher, which knows more, does so
        # itself.
        is_lost = any(finding.id == "store-lost" for finding in phase.findings)
        is_lost = is_lost and context.is_first_of_host and not context.env.launched
        if context.env.rank == 0:
            self._print(phase)
        elif phase.verdict == model.FAIL and (context.all_gather is None or is_lost):
            self._print(phase, f"rank {context.env.rank}: ")

    def write(self) -> None:
        if self._context.env.rank == 0:
            write_report(self.current, self._context.options.out)

    def fail(
        self,
        name: str,
        findings: tuple[Finding, ...],
        data: dict[str, object] | None = None,
        is_written: bool = True,
    ) -> None:
        """Reports that the run ends in this phase, whichever rank this is.

        In the first unfinished phase, if this one is in the report already: a rank may end after the
        others know that it has completed a phase, and before it begins the next. is_written: else
        only prints what this rank observed of an end that another rank reports.
        """
        if name in [phase.name for phase in self._finished]:
            name = first_pending(self.current) or name
        outcome = Outcome(findings=findings, data=data or {})
        phase_s = time.monotonic() - self._last_phase_ended
        failed, phase = with_failure(self.current, name, outcome, phase_s)
        try:
            if is_written:
                write_report(failed, self._context.options.out)
        finally:  # a full disk hides nothing from the terminal
            self._print(phase, "" if is_written else f"rank {self._context.env.rank}: ")

    @property
    def current(self) -> model.Report:
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

    def _print(self, phase: model.ReportedPhase, prefix: str = "") -> None:
        lines = table.phase_lines(phase, table.terminal_width(self._output))
        os.write(self._output, "".join(f"{prefix}{line}\n" for line in lines).encode())
