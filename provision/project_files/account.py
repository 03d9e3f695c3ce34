"""The account of a project's files: what became of every line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

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


def counts(entries: Sequence[Entry]) -> dict[Outcome, int]:
    """How many statements had each outcome."""
    return {"taken": 0, "translated": 0, "left out": 0, **Counter(one.outcome for one in entries)}
