"""The account of a project's files: what became of every line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from provision.core.statements import Statement

Outcome = Literal["taken", "translated", "left out"]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What became of one statement.

    became: the key of spec.yml that holds it, with its value where that was translated.
    """

    file: str
    line: int | None
    text: str
    outcome: Outcome
    became: str = ""
    reason: str = ""
    next_step: str = ""


def entry_of(
    statement: Statement,
    outcome: Outcome,
    *,
    became: str = "",
    reason: str = "",
    next_step: str = "",
) -> Entry:
    """The entry of a statement; its own reason and next step unless others are given."""
    return Entry(
        file=statement.file,
        line=statement.line,
        text=statement.text,
        outcome=outcome,
        became=became,
        reason=reason or statement.reason,
        next_step=next_step or statement.next_step,
    )


def counts(entries: Sequence[Entry]) -> dict[Outcome, int]:
    """How many statements had each outcome."""
    counter = Counter(entry.outcome for entry in entries)
    return {
        "taken": counter["taken"],
        "translated": counter["translated"],
        "left out": counter["left out"],
    }
