"""What one rank says about one phase, and how the ranks' answers become one. Pure."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from .. import report

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SOURCE_PLACE = re.compile(r"\[\S+\.(?:cc|cpp|h):\d+\]\s*")
# More ranks than this in one line hide what they have in common.
NAMED_RANKS = 4


@dataclass(frozen=True)
class Outcome:
    verdict: str = report.PASS
    message: str = ""
    advice: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    # The phase could not be carried through, so what comes after it would prove nothing.
    broken: bool = False

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def failed(message: str, advice: str = "", data: dict[str, Any] | None = None) -> Outcome:
    return Outcome(report.FAIL, message, advice, data or {})


def broke(message: str, advice: str = "") -> Outcome:
    return Outcome(report.FAIL, message, advice, broken=True)


def error_in_words(error: BaseException) -> str:
    """One line. Gloo's texts begin with a place in its source and end with guesses."""
    text = SOURCE_PLACE.sub("", " ".join(str(error).split())).split(". This is typically", 1)[0]
    return f"{type(error).__name__}: {text}"


def fold(outcomes: Sequence[Outcome]) -> Outcome:
    """The worst verdict, with the messages of the ranks that gave it; rank 0's data."""
    verdict = report.overall(outcome.verdict for outcome in outcomes)
    worst = {rank: outcome for rank, outcome in enumerate(outcomes) if outcome.verdict == verdict}
    first = next(iter(worst.values()))
    message = first.message if verdict == report.PASS else by_rank({r: o.message for r, o in worst.items()})
    broken = any(outcome.broken for outcome in outcomes)
    return Outcome(verdict, message, first.advice, outcomes[0].data, broken)


def by_rank(messages: Mapping[int, str]) -> str:
    """`rank 1: ...; rank 3: ...`, with ranks that say the same named together."""
    said: dict[str, list[int]] = {}
    for rank, message in messages.items():
        said.setdefault(message, []).append(rank)
    return "; ".join(f"{name_ranks(ranks)}: {message}" for message, ranks in said.items())


def name_ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:NAMED_RANKS])
    rest = f" and {len(ranks) - NAMED_RANKS} more" if len(ranks) > NAMED_RANKS else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{rest}"
