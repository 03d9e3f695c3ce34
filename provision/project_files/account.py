"""The account of a project's files: what became of every line."""

from __future__ import annotations

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
