"""What one rank reports about one phase, and how the ranks' outcomes become one. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from typing import Any, Dict, Tuple, TypeVar

from ..dataclass import frozen
from ..report import model
from ..report.findings import Finding as Finding

K = TypeVar("K")
V = TypeVar("V")
# `[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] `
SOURCE_LOCATION = re.compile(r"\[\S+\.(?:cc|cpp|h):\d+\]\s*")


@frozen
class Outcome:
    message: str = ""
    findings: Tuple[Finding, ...] = ()
    data: Dict[str, Any] = field(default_factory=dict)
    # The phase could not be completed, so later phases would prove nothing.
    broken: bool = False

    @property
    def verdict(self) -> str:
        return model.overall([model.PASS, *(finding.verdict for finding in self.findings)])

    @property
    def summary(self) -> str:
        """One line: what was measured if all is well, else what is wrong."""
        serious = [str(item) for item in self.findings if item.verdict != model.WARN]
        warnings = [str(item) for item in self.findings]
        text = "; ".join(serious) or self.message or "; ".join(warnings)
        return " ".join(text.split())


def with_finding(
    finding_id: str, message: str, ranks: Sequence[int] = (), broken: bool = False
) -> Outcome:
    return Outcome(findings=(Finding(finding_id, message, tuple(ranks)),), broken=broken)


def describe_error(error: BaseException) -> str:
    """One line. Gloo's messages begin with a line of its source and end with guesses."""
    text = SOURCE_LOCATION.sub("", " ".join(str(error).split()))
    text = text.split(". This is typically", 1)[0]
    return f"{type(error).__name__}: {text}"


def combine(outcomes: Sequence[Outcome]) -> Outcome:
    """One outcome from those of all ranks: all findings, equal ones merged; rank 0's message and
    data."""
    findings = []
    for rank, outcome in enumerate(outcomes):
        findings += [with_rank(finding, rank) for finding in outcome.findings]
    broken = any(outcome.broken for outcome in outcomes)
    return Outcome(outcomes[0].message, merge_equal(findings), outcomes[0].data, broken)


def with_rank(finding: Finding, rank: int) -> Finding:
    """A finding that names no rank is about the rank that reports it."""
    return finding if finding.ranks else replace(finding, ranks=(rank,))


def merge_equal(findings: Iterable[Finding], by_id: bool = False) -> tuple[Finding, ...]:
    """Findings with the same id and message become one of all their ranks, in the order of the
    first. by_id: those with the same id, with the message of the first: the same fault may strike
    each rank at a different step."""
    merged: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        key = (finding.id, "" if by_id else finding.message)
        first = merged.get(key, finding)
        ranks = sorted({*first.ranks, *finding.ranks})
        merged[key] = replace(first, ranks=tuple(ranks))
    return tuple(merged.values())


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values of each key, in the order in which they come."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def majority(groups: Iterable[Sequence[int]]) -> Sequence[int]:
    """Of ranks grouped by what they have, the group with more than half of all; empty if there is
    none, since then any may be wrong."""
    by_size = sorted(groups, key=len)
    largest = by_size[-1]
    return largest if len(largest) > sum(map(len, by_size[:-1])) else ()
