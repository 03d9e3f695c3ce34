"""The smoke report as lines for a person: a row per phase, and below it each finding with one line of advice.

Owns the words and columns, for a terminal of any width and for pipes, where every row, finding and advice is one line of
its own. Pure. Takes the report's JSON, so the host shows it with the same words.
"""

from __future__ import annotations

import os
import textwrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HEAD = f"{'verdict':<8} {'phase':<12} {'time':>7}  what"
# Where the last column begins, and how far findings and their advice are indented.
WHAT, FINDING, ADVICE = 31, 4, 6
# Narrower than this, lines are left to the terminal.
NARROWEST = 50
# More ranks than this in one line hide what they have in common.
NAMED_RANKS = 8
NOT_RUN = "left out (--skip, --only)"


def lines(report: Mapping[str, Any], width: int | None) -> list[str]:
    """All of a report. width: of the terminal, or None where nothing is to be wrapped."""
    skipped = [
        line for name in report["skipped"] for line in row("skipped", name, None, NOT_RUN, width)
    ]
    return [
        HEAD,
        *(line for phase in report["phases"] for line in phase_lines(phase, width)),
        *skipped,
    ]


def phase_lines(phase: Mapping[str, Any], width: int | None) -> list[str]:
    """One phase, and its findings. A phase that says nothing but its findings does not say them twice."""
    findings = phase["findings"]
    told = (
        phase["message"]
        if phase["verdict"] in ("pass", "warn") or not findings
        else _counted(findings)
    )
    shown = row(phase["verdict"], phase["name"], phase["duration_s"], told, width)
    return shown + [line for finding in findings for line in finding_lines(finding, width)]


def finding_lines(finding: Mapping[str, Any], width: int | None) -> list[str]:
    said = wrapped(f"{' ' * FINDING}{in_words(finding)}", width, FINDING + 2)
    return said + (
        wrapped(f"{' ' * ADVICE}-> {finding['advice']}", width, ADVICE + 3)
        if finding["advice"]
        else []
    )


def in_words(finding: Mapping[str, Any]) -> str:
    """`wrong-value, rank 1: what happened`, with the verdict where it is not a failure."""
    verdict = "" if finding["verdict"] == "fail" else f" [{finding['verdict']}]"
    ranks = f", {name_ranks(finding['ranks'])}" if finding["ranks"] else ""
    return f"{finding['id']}{verdict}{ranks}: {finding['message']}"


def name_ranks(ranks: Sequence[int]) -> str:
    """`ranks 0-3, 7`: runs are shortened, and of very many only the first are named."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = [
        word
        for run in runs
        for word in ([f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run))
    ]
    rest = f" and {len(words) - NAMED_RANKS} more" if len(words) > NAMED_RANKS else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(words[:NAMED_RANKS])}{rest}"


def row(
    verdict: str, name: str, duration_s: float | None, what: str, width: int | None
) -> list[str]:
    seconds = "" if duration_s is None else f"{duration_s:.1f} s"
    return wrapped(f"{verdict:<8} {name:<12} {seconds:>7}  {what}".rstrip(), width, WHAT)


def wrapped(text: str, width: int | None, indent: int) -> list[str]:
    """The text in lines of the terminal's width, the second and later ones indented. A word that is too long stays whole."""
    one_line = text[: len(text) - len(text.lstrip())] + "".join(
        " " if mark in "\r\n\t\v\f" else mark for mark in text.strip()
    )
    if width is None or width < NARROWEST:
        return [one_line]
    return textwrap.wrap(
        one_line,
        width,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )


def terminal_width(descriptor: int = 1) -> int | None:
    """Of what a descriptor leads to; None where that is no terminal."""
    try:
        return os.get_terminal_size(descriptor).columns or None
    except OSError:
        return None


def _counted(findings: Sequence[Any]) -> str:
    return f"{len(findings)} finding{'s' if len(findings) > 1 else ''}"
