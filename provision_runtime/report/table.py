"""The smoke report as lines for people: a row per phase, and below it each finding and its advice.

Wraps lines for a terminal of any width; in a pipe every row, finding and advice is one line. Pure.
The host prints the same.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from ..comm.rank_names import name_ranks as name_ranks  # the host takes it from here
from .text import format_count

# Commands that print no report take the terminal's width from here.
if TYPE_CHECKING:
    from .model import Report, ReportedFinding, ReportedPhase

HEAD = f"{'verdict':<8} {'phase':<12} {'time':>7}  message"
# Where the message column begins, and how far findings and their advice are indented.
MESSAGE_COLUMN, FINDING_INDENT, ADVICE_INDENT = 31, 4, 6
# On a narrower terminal the lines are not wrapped.
NARROWEST = 50
SKIPPED = "skipped (settings skip, only)"


def lines(report: Report, width: int | None) -> list[str]:
    """The whole report. width: of the terminal, or None not to wrap."""
    result = [HEAD]
    for phase in report.phases:
        result += phase_lines(phase, width)
    for name in report.skipped:
        result += row("skipped", name, None, SKIPPED, width)
    return result


def phase_lines(phase: ReportedPhase, width: int | None) -> list[str]:
    """One phase and its findings. The message of a failed phase would repeat its findings, so only
    their number is shown."""
    findings = phase.findings
    message = phase.message
    if findings and phase.verdict not in ("pass", "warn"):
        message = format_count(len(findings), "finding")
    result = row(phase.verdict, phase.name, phase.duration_s, message, width)
    for finding in findings:
        result += finding_lines(finding, width)
    return result


def finding_lines(finding: ReportedFinding, width: int | None) -> list[str]:
    result = wrapped(f"{' ' * FINDING_INDENT}{describe(finding)}", width, FINDING_INDENT + 2)
    if finding.advice:
        text = f"{' ' * ADVICE_INDENT}-> {finding.advice}"
        result += wrapped(text, width, ADVICE_INDENT + 3)
    return result


def describe(finding: ReportedFinding) -> str:
    """`wrong-value, rank 1: what happened`; with the verdict if it is not a failure."""
    verdict = "" if finding.verdict == "fail" else f" [{finding.verdict}]"
    ranks = f", {name_ranks(finding.ranks)}" if finding.ranks else ""
    return f"{finding.id}{verdict}{ranks}: {finding.message}"


def row(
    verdict: str, name: str, duration_s: float | None, message: str, width: int | None
) -> list[str]:
    seconds = "" if duration_s is None else f"{duration_s:.1f} s"
    text = f"{verdict:<8} {name:<12} {seconds:>7}  {message}"
    return wrapped(text.rstrip(), width, MESSAGE_COLUMN)


def wrapped(text: str, width: int | None, indent: int) -> list[str]:
    """The text in lines of the terminal's width, all but the first indented. A long word stays
    whole."""
    margin = len(text) - len(text.lstrip())
    one_line = text[:margin] + re.sub(r"[\r\n\t\v\f]", " ", text[margin:].rstrip())
    if width is None or width < NARROWEST:
        return [one_line]
    import textwrap  # 1 ms, for a table that is too wide

    return textwrap.wrap(
        one_line,
        width,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )


def terminal_width(descriptor: int = 1) -> int | None:
    """None if the file descriptor is not a terminal."""
    try:
        return os.get_terminal_size(descriptor).columns or None
    except OSError:
        return None
