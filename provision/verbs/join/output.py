"""What `provision join` prints."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from provision.cli.console import for_stream
from provision_runtime.report.table import terminal_width

if TYPE_CHECKING:
    from provision.verbs.join.join import JoinReport
    from provision.verbs.join.steps import StepResult

# Without a terminal lines are as long as they are.
UNLIMITED = 10_000


def join_lines(report: JoinReport) -> list[str]:
    """A paragraph for each step, then whom to ask, and the first commands."""
    width = terminal_width() or UNLIMITED
    lines: list[str] = []
    for number, result in enumerate(report.steps, start=1):
        lines += _step_lines(number, result, width)
    verdict = "you are ready."
    if report.open_steps:
        verdict = f"still open: {', '.join(report.open_steps)}. `provision join` continues there"
        verdict += ", once you have done what it asks." if report.acted else "."
    lines += ["", *_wrapped(f"{report.lab}: {verdict}", "", width)]
    lines.append(f"questions: {report.contact}")
    if report.commands:
        lines += ["", "use it"]
    for purpose, command in report.commands:
        lines += [f"  # {purpose}", f"  {command}"]
    return lines


def join_json(report: JoinReport) -> dict[str, object]:
    steps = [
        {
            "step": result.step,
            "status": result.status,
            "changed": result.changed,
            "notes": result.notes,
        }
        for result in report.steps
    ]
    return {
        "lab": report.lab,
        "contact": report.contact,
        "source": report.source,
        "acted": report.acted,
        "open": report.open_steps,
        "steps": steps,
        "commands": [command for _, command in report.commands],
    }


def _step_lines(number: int, result: StepResult, width: int) -> Iterator[str]:
    yield f"{number} {result.step}: {result.status}"
    for note in result.notes:
        mark = f"{note.status}: " if note.status in ("warning", "open") else ""
        yield from _wrapped(f"{mark}{note.message}", "    ", width)
        if note.advice:
            yield from _wrapped(note.advice, "      > ", width)


def _wrapped(text: str, indent: str, width: int) -> list[str]:
    following = " " * len(indent)
    return textwrap.wrap(
        for_stream(text, sys.stdout),
        width=max(width, 40),
        initial_indent=indent,
        subsequent_indent=following,
        break_long_words=False,
        break_on_hyphens=False,
    )
