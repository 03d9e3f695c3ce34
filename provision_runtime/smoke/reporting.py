"""What a rank writes and prints of the run: on rank 0 the report, after every phase anew, and a row for people.

Another rank reports where rank 0 is gone, and speaks for itself where it cannot reach the others.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from .. import fs
from ..comm.store import StoreLost
from ..report import junit, model, table
from . import postmortem, progress

if TYPE_CHECKING:
    from pathlib import Path

    from .outcome import Outcome
    from .session import Session

REPORT_NAME = "report.json"
# Who reports where rank 0 cannot.
DEPUTY = 1


def write_report(report: model.Report, path: Path, junit_path: Path | None = None) -> None:
    """Writes report.json and, if a path is given, the same as JUnit XML."""
    fs.atomic_write(path, model.dumps(report).encode())
    if junit_path is not None:
        document = model.document(report)
        fs.atomic_write(junit_path, junit.dumps({model.KIND: document}).encode())


class Reporter:
    """output: the file descriptor that is ours alone."""

    def __init__(self, session: Session, output: int) -> None:
        self._session = session
        self._output = output
        self._started = time.monotonic()
        self._started_at = datetime.now(timezone.utc)
        self._finished: list[model.Phase] = []

    def record(self, phase: model.Phase) -> None:
        """A phase that is over."""
        self._finished.append(phase)
        self.write()
        # Without a store this rank speaks for itself.
        alone = self._session.meeting is None and phase.verdict == model.FAIL
        if self._reports or alone:
            self._say(phase, "" if self._reports else f"rank {self._session.place.rank}: ")

    def write(self) -> None:
        if self._reports:
            write_report(
                self.current, self._session.options.out / REPORT_NAME, self._session.options.junit
            )

    def fail(self, name: str, outcome: Outcome, duration_s: float) -> None:
        """The run ends in this phase, whoever reports it."""
        failing = progress.with_failure(self.current, name, outcome, duration_s)
        write_report(failing, self._session.options.out / REPORT_NAME, self._session.options.junit)
        self._say(next(phase for phase in failing.phases if phase.name == name))

    def settle(self) -> None:
        """Keep the deputy from reporting again, from less knowledge."""
        mailbox = self._session.watchdog_mailbox
        try:
            if self._session.place.rank == 0 and mailbox is not None:
                mailbox.set("reported", True)
        except StoreLost:
            return

    @property
    def current(self) -> model.Report:
        """Of the run so far."""
        session = self._session
        return model.Report(
            started_at=self._started_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            duration_s=round(time.monotonic() - self._started, 3),
            backend=session.backend,
            device=session.device,
            world_size=session.place.world_size,
            hosts=session.hosts or [session.place.host],
            profile=session.options.profile,
            skipped=list(session.options.skipped),
            facts=session.facts,
            phases=progress.with_pending(self._finished, session.options.planned),
        )

    @property
    def _reports(self) -> bool:
        """Rank 0 reports; its deputy does where rank 0 is known to be gone."""
        absent = any(
            0 in finding.ranks and finding.id in postmortem.ABSENCES
            for phase in self._finished
            for finding in phase.findings
        )
        return self._session.place.rank == (DEPUTY if absent else 0)

    def _say(self, phase: model.Phase, before: str = "") -> None:
        lines = table.phase_lines(asdict(phase), table.terminal_width(self._output))
        os.write(self._output, "".join(f"{before}{line}\n" for line in lines).encode())
