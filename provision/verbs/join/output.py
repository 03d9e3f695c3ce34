"""What `provision join` prints."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from provision.cli.console import for_stream, output_width, wrap_line

if TYPE_CHECKING:
    from provision.verbs.join.join import JoinReport
    from provision.verbs.join.steps import StepResult

# Without a terminal lines are as long as they are.
UNLIMITED = 10_000


def join_lines(report: JoinReport) -> list[str]:
    """A paragraph for each step, then whom to ask, and the first commands."""
    width = output_width() or UNLIMITED
    lines: list[str] = []
    for number, result in enumerate(report.steps, start=1):
        lines += _step_lines(number, result, width)
    verdict = "you are ready."
    if report.open_steps:
        verdict = f"still open: {', '.join(report.open_steps)}. `provision join` continues there"
        verdict += ", once you have done what it asks." if report.acted else "."
    lines += ["", *_wrapped(f"{report.lab}: {verdict}", width)]
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
        yield from _wrapped(f"    {mark}{note.message}", width)
        if note.advice:
            yield from _wrapped(f"      > {note.advice}", width, indent=2)


def _wrapped(line: str, width: int, indent: int = 0) -> list[str]:
    return wrap_line(for_stream(line, sys.stdout), width, indent)
