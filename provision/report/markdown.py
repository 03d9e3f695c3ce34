"""The page's verdicts and findings as Markdown, for the summary of a CI job. Pure."""

from __future__ import annotations

import re

from provision.report.model import Measurement, Page
from provision_runtime.report.table import name_ranks


def markdown_summary(page: Page) -> str:
    """The verdict of each run with its phases and findings, and what the evidence lacks."""
    lines = [f"### {_escape(page.title)}: {_escape(page.verdict)}", ""]
    for run in page.measurements:
        lines += _run_lines(run)
    for test in page.node_tests:
        where = f"{test.environment} on {test.on}, {test.started_at}"
        lines += [f"**{_escape(test.verdict)}** {_escape(where)}", ""]
        for row in test.nodes:
            lines.append(f"- {_escape(row.node)}: {_escape(f'{row.state} {row.remark}')}")
        lines.append("")
    lines += [f"- {_escape(line)}" for line in page.missing]
    return "\n".join(lines).rstrip("\n") + "\n"


def _run_lines(run: Measurement) -> list[str]:
    facts = [f"{what} {value}" for what, value in run.setting.items()]
    lines = [f"**{_escape(run.verdict)}** {_escape('; '.join([run.label, *facts]))}", ""]
    lines += [f"{_escape(note)}\n" for note in run.notes]
    if not run.phases:
        return lines
    lines += ["| verdict | phase | s | result |", "|---|---|--:|---|"]
    findings = []
    for phase in run.phases:
        message = _escape(phase.message)
        lines.append(
            f"| {_escape(phase.verdict)} | {_escape(phase.name)} | {phase.duration_s:.1f} "
            f"| {message} |"
        )
        for finding in phase.findings:
            ranks = f", {name_ranks(finding.ranks)}" if finding.ranks else ""
            text = f"- **{_escape(finding.id)}**{ranks}: {_escape(finding.message)}"
            findings.append(f"{text} {_escape(finding.advice)}".rstrip())
    return [*lines, "", *findings, ""] if findings else [*lines, ""]


def _escape(text: str) -> str:
    """Text of a document on one line, where it cannot be read as Markdown or HTML."""
    return re.sub(r"([\\`*_\[\]<>|#~&])", r"\\\1", " ".join(text.split()))
