"""What is printed of an environment: its build, its smoke tests, its passport.

Also the summary of a command over many environments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from provision.cli.console import table
from provision.core.types import EnvironmentOutcome, SmokeResult


def outcome_lines(outcomes: Sequence[EnvironmentOutcome]) -> list[str]:
    """A row for each environment, then the number that failed."""
    rows = [
        (outcome.name, outcome.status, f"{outcome.seconds:.1f} s", outcome.detail)
        for outcome in outcomes
    ]
    failed = sum(outcome.exit_code != 0 for outcome in outcomes)
    verdict = f"{failed} of {len(outcomes)} failed"
    return [table(rows, ("environment", "status", "time", "what")), "", verdict]


def smoke_lines(result: SmokeResult, *, brief: bool = False) -> list[str]:
    """The verdict of a test and a line per phase; for each finding what happened and what to do.

    brief: only the phases that did not pass, where all were shown while the test ran.
    """
    report = result.report
    ranks = report.get("world_size")
    noun = "rank" if ranks == 1 else "ranks"
    setting = f"{ranks} {noun}, {report.get('backend')} on {report.get('device')}"
    return [
        f"smoke test in the {result.where}: {result.verdict} ({setting})",
        *phase_lines(report, "  ", brief=brief),
        f"  evidence: {result.evidence}",
    ]


def phase_lines(report: Mapping[str, Any], indent: str, *, brief: bool = False) -> list[str]:
    """The phases of a smoke report as the test itself prints them, as wide as the terminal.

    brief: only those that did not pass.
    """
    from provision_runtime.report import model
    from provision_runtime.report import table as report_table

    try:
        content = model.parse(report)
    except model.ReportUnreadable as error:
        return [f"{indent}its report cannot be shown, test again: {error}"]
    if brief:
        phases = [phase for phase in content.phases if phase.verdict != "pass"]
        if not phases:
            return []
        content = replace(content, phases=phases, skipped=[])
    width = report_table.terminal_width()
    if width:
        width -= len(indent)
    return [f"{indent}{line}" for line in report_table.lines(content, width)]
