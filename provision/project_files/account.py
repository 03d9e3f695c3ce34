"""The account of a project's files: what became of every line."""

from __future__ import annotations

from typing import Literal

from provision.core.dataclass import frozen

Outcome = Literal["taken", "translated", "left out"]


@frozen
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
