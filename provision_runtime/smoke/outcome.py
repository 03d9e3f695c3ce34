"""What one rank says about one phase, and how the ranks' answers become one. Pure."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..comm.ranks import name_ranks
from ..report import model
from .findings import CATALOG

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SOURCE_PLACE = re.compile(r"\[\S+\.(?:cc|cpp|h):\d+\]\s*")


@dataclass(frozen=True)
class Finding:
    """Something that is wrong: an id of the catalog, what happened in words, and to which ranks.

    No ranks: the rank that says it. No advice: the catalog's.
    """

    id: str
    message: str
    ranks: tuple[int, ...] = ()
    advice: str = ""

    @property
    def verdict(self) -> str:
        return CATALOG[self.id].verdict

    def reported(self) -> model.Finding:
        return model.Finding(
            self.id,
            self.verdict,
            list(self.ranks),
            self.message,
            self.advice or CATALOG[self.id].advice,
        )

    def __str__(self) -> str:
        return f"{name_ranks(self.ranks)}: {self.message}" if self.ranks else self.message


@dataclass(frozen=True)
class Outcome:
    message: str = ""
    findings: tuple[Finding, ...] = ()
    data: dict[str, Any] = field(default_factory=dict)
    # The phase could not be carried through, so what comes after it would prove nothing.
    broken: bool = False

    @property
    def verdict(self) -> str:
        return model.overall([model.PASS, *(finding.verdict for finding in self.findings)])

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def from_json(said: Mapping[str, Any]) -> Outcome:
    findings = tuple(
        Finding(f["id"], f["message"], tuple(f["ranks"]), f["advice"]) for f in said["findings"]
    )
    return Outcome(said["message"], findings, said["data"], said["broken"])


def found(
    id: str,
    message: str,
    ranks: Sequence[int] = (),
    advice: str = "",
    data: dict[str, Any] | None = None,
    broken: bool = False,
) -> Outcome:
    """An outcome with one finding."""
    return Outcome("", (Finding(id, message, tuple(ranks), advice),), data or {}, broken)


def error_in_words(error: BaseException) -> str:
    """One line. Gloo's texts begin with a place in its source and end with guesses."""
    text = SOURCE_PLACE.sub("", " ".join(str(error).split())).split(". This is typically", 1)[0]
    return f"{type(error).__name__}: {text}"


def fold(outcomes: Sequence[Outcome]) -> Outcome:
    """Every rank's findings, those that say the same as one; rank 0's message and data."""
    findings = united(
        [
            with_rank(finding, rank)
            for rank, outcome in enumerate(outcomes)
            for finding in outcome.findings
        ]
    )
    return Outcome(
        outcomes[0].message, findings, outcomes[0].data, any(outcome.broken for outcome in outcomes)
    )


def with_rank(finding: Finding, rank: int) -> Finding:
    """A finding that names no rank is about the rank that says it."""
    return finding if finding.ranks else replace(finding, ranks=(rank,))


def united(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Findings that say the same of several ranks are one, in the order of their first."""
    ranks: dict[tuple[str, str], set[int]] = {}
    for finding in findings:
        ranks.setdefault((finding.id, finding.message), set()).update(finding.ranks)
    first = {(finding.id, finding.message): finding for finding in reversed(findings)}
    return tuple(replace(first[key], ranks=tuple(sorted(named))) for key, named in ranks.items())


def in_words(outcome: Outcome) -> str:
    """The phase in one line: what was measured where all is well, else what is wrong."""
    bad = [finding for finding in outcome.findings if finding.verdict != model.WARN]
    return " ".join(
        (
            "; ".join(map(str, bad)) or outcome.message or "; ".join(map(str, outcome.findings))
        ).split()
    )
