"""How one rank finds out which rank is to blame when the run must end early.

Pure: `last_states` gathers the evidence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import List, Optional

from ..comm import processes
from ..comm.rank_names import name_ranks
from ..dataclass import frozen
from ..facts.oom import OomCounter
from . import collective_log
from .collective_log import Call
from .options import PHASES
from .outcome import Finding, Outcome, grouped, merge_equal, with_rank

STATE_FINDINGS = {
    processes.GONE: ("rank-died", "its process is gone"),
    processes.STOPPED: ("rank-stopped", "its process is stopped"),
}
# What a rank reports only because another rank has ended or is in another collective.
CONSEQUENCES = ("backend-error", "store-lost")


@frozen
class Position:
    """Where a rank is: its phase, how many exchanges and collectives it has begun, the latest of
    them, and whether that is a collective."""

    phase: str
    exchanges: int
    collectives: int
    step: str
    in_collective: bool = False

    @property
    def order(self) -> tuple[int, int, int]:
        phase = PHASES.index(self.phase) if self.phase in PHASES else len(PHASES)
        return phase, self.exchanges, self.collectives

    def skipped_collective(self, other: Position) -> bool:
        """Whether this rank, and not the other, skipped one: it reached a later exchange after
        fewer collectives."""
        return self.exchanges > other.exchanges and self.collectives < other.collectives

    def __str__(self) -> str:
        return f"{self.phase} ({self.step}, collective {self.collectives})"


@frozen
class Location:
    """Where a rank is, and what other ranks need to find out its end: its process, and the counter
    of its cgroup."""

    phase: str
    host: str
    process: List[str]
    run: str
    oom: Optional[OomCounter] = None


@frozen
class LastState:
    """What a rank writes before it ends. outcome: of the phase, if the rank had left it."""

    run: str
    rank: int
    host: str
    reason: str
    position: Position
    calls: List[Call]
    outcome: Outcome
    stack: List[str]
    schema: int = 3
    kind: str = "last-state"


@dataclass
class PostmortemEvidence:
    # What each rank wrote before it ended.
    last_states: dict[int, LastState] = field(default_factory=dict)
    # By rank, as it last published it.
    locations: dict[int, Location] = field(default_factory=dict)
    process_states: dict[int, str] = field(default_factory=dict)
    # How many processes the kernel killed in the cgroup of a rank that has ended, as memory ran out.
    oom_kills: dict[int, int] = field(default_factory=dict)

    def reported(self, but: int = -1) -> list[Finding]:
        """What the ranks, but this one, found before they ended."""
        findings: list[Finding] = []
        for rank, state in sorted(self.last_states.items()):
            if rank != but:
                findings += [with_rank(finding, rank) for finding in state.outcome.findings]
        return findings

    def differing_calls(self) -> Finding | None:
        return collective_log.compare(
            {rank: state.calls for rank, state in self.last_states.items()}
        )


def blame(
    evidence: PostmortemEvidence, world_size: int, reason: str, cause: str
) -> tuple[Finding, ...]:
    """The ranks that kept the others waiting, and why. Consequences are not reported.

    cause: the finding's id if no single rank is to blame.
    """
    silent = [rank for rank in range(world_size) if rank not in evidence.last_states]
    reported = evidence.reported()
    if reported or silent:
        return root_causes(reported, silent, evidence)
    positions = {rank: state.position for rank, state in sorted(evidence.last_states.items())}
    message = f"{reason}: {_describe_positions(positions)}"
    if cause == "interrupted":
        return (Finding(cause, message, tuple(positions)),)
    if _are_calls_comparable(list(positions.values())):
        differing = evidence.differing_calls()
        if differing is not None:
            return (differing,)
    furthest = max((position.order for position in positions.values()), default=(0, 0, 0))
    behind = [rank for rank, position in positions.items() if position.order < furthest]
    if behind:
        stuck = [Finding("rank-stuck", f"{reason}: {positions[rank]}", (rank,)) for rank in behind]
        return merge_equal(stuck)
    return (Finding(cause, message, tuple(positions)),)


def root_causes(
    reported: Sequence[Finding], silent: Sequence[int], evidence: PostmortemEvidence
) -> tuple[Finding, ...]:
    """The causes among what ranks reported, and among the silent ranks.

    After a rank left with an error, a silent rank whose process lives is only waiting: it is no
    cause. A backend error follows from a rank that ended or called a different collective;
    otherwise it is itself the cause (out of memory, for example).
    """
    if not reported:
        return merge_equal(_absence_findings(silent, evidence))
    ended = [rank for rank in silent if evidence.process_states.get(rank) in STATE_FINDINGS]
    causes = [finding for finding in reported if finding.id not in CONSEQUENCES]
    if causes:
        return merge_equal([*_absence_findings(ended, evidence), *causes])
    states = evidence.process_states
    absent = ended or [rank for rank in silent if states.get(rank) != processes.ALIVE]
    if absent:
        return merge_equal(_absence_findings(absent, evidence))
    differing = evidence.differing_calls()
    if differing is not None and differing.id == "collective-mismatch":
        return (differing,)
    return merge_equal(reported)


def _absence_findings(ranks: Sequence[int], evidence: PostmortemEvidence) -> list[Finding]:
    findings = []
    for rank in ranks:
        if rank not in evidence.locations:
            findings.append(Finding("rank-missing", "it never reached the store", (rank,)))
            continue
        location = evidence.locations[rank]
        finding_id, state = STATE_FINDINGS.get(
            evidence.process_states.get(rank, ""), ("rank-silent", "it does not respond")
        )
        if evidence.oom_kills.get(rank):
            finding_id, state = "rank-oom-killed", describe_oom(evidence.oom_kills[rank])
        message = f"{state}, last in {location.phase} on {location.host}"
        findings.append(Finding(finding_id, message, (rank,)))
    return findings


def describe_oom(kills: int) -> str:
    return f"its process was killed because memory ran out (oom_kill of its cgroup rose by {kills})"


def failing_phase(evidence: PostmortemEvidence, phase_of_rank: str) -> str:
    """The earliest phase that any rank is in; if ranks left with an error, that any of those is
    in."""
    states = evidence.last_states
    candidates = [state.position.phase for state in states.values() if state.outcome.findings]
    if not candidates:
        candidates = [state.position.phase for state in states.values()]
        candidates += [
            where.phase for rank, where in evidence.locations.items() if rank not in states
        ]
    return min(set(candidates) & set(PHASES), key=PHASES.index, default=phase_of_rank)


def _are_calls_comparable(positions: Sequence[Position]) -> bool:
    """Whether the ranks wait for one another, in a collective or at the exchange after it: only
    then does comparing their calls mean something."""
    if any(one.skipped_collective(other) for one in positions for other in positions):
        return True
    is_in_collective = all(position.in_collective for position in positions)
    return is_in_collective and len({position.collectives for position in positions}) == 1


def _describe_positions(positions: Mapping[int, Position]) -> str:
    """Where every rank is; ranks at the same step together."""
    ranks_by_position = grouped((str(position), rank) for rank, position in positions.items())
    if len(ranks_by_position) == 1 and len(positions) > 1:
        return f"all ranks are in {next(iter(ranks_by_position))}"
    return "; ".join(
        f"{name_ranks(ranks)} in {position}" for position, ranks in ranks_by_position.items()
    )
