"""Judges the ranks of a job: who waits for whom, where calls differ, and the cause. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, List, Optional

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .model import Collective, Frame, Snapshot

HANG, FAILURE, NO_HANG, UNKNOWN = "hang", "failure", "no-hang", "unknown"


@dataclass(frozen=True)
class Group:
    """Ranks in equal states. is_culprit: the others wait for these."""

    ranks: List[int]
    hosts: List[str]
    kind: str
    text: str
    line: Optional[Frame] = None
    collective: Optional[Collective] = None
    is_culprit: bool = False


@dataclass(frozen=True)
class Cause:
    """id: of `causes.CATALOG`. line: where it is in the user's code."""

    id: str
    ranks: List[int]
    message: str
    advice: str
    line: Optional[Frame] = None


@dataclass(frozen=True)
class Diagnosis:
    """One job. verdict: `hang`, `failure` (a rank has ended with an error), `no-hang` (nothing hangs,
    as far as seen) or `unknown`. groups: the missing or differing ranks first. differences: of the
    calls of ranks, a sentence each."""

    job: str
    world_size: int
    verdict: str
    summary: str
    groups: List[Group]
    differences: List[str] = field(default_factory=list)
    causes: List[Cause] = field(default_factory=list)
    notes: List[str] = field(default_factory=list)


def diagnose(snapshots: Sequence[Snapshot]) -> List[Diagnosis]:
    """One diagnosis per job, from the snapshots of its nodes."""
    raise NotImplementedError
