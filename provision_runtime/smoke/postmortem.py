"""What a rank writes when it must end early, and how one rank finds out which rank is to blame.

`Position`, `blame` and the functions it calls are pure; the rest runs in the watchdog's thread
while the main thread hangs.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .. import fs
from ..comm import processes
from ..comm.rank_names import name_ranks
from ..comm.store import StoreLost
from . import collective_log
from .options import PHASES
from .outcome import Finding, from_json, merge_equal, with_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from ..comm.store import StoreClient

# All ranks notice a deadline within a tick of one another; this is how long the reporting rank
# waits for their last states.
GRACE_S = 2.0
POLL_S = 0.05
# How long the store may take for an answer when the run ends.
ANSWER_S = 1.0
# How many of its latest calls a rank's last state has: two ranks that differ do so in the last few.
REPORTED_CALLS = 32
STATE_FINDINGS = {
    processes.GONE: ("rank-died", "its process is gone"),
    processes.STOPPED: ("rank-stopped", "its process is stopped"),
}
# What the other ranks report about a rank that reports nothing itself.
ABSENCES = ("rank-died", "rank-stopped", "rank-missing", "rank-silent")
# What a rank reports only because another rank is gone or in another collective.
CONSEQUENCES = ("backend-error", "store-lost")


@dataclass(frozen=True)
class Position:
    """Where a rank is: its phase, how many exchanges and collectives it has begun, the latest of
    them, and the line of the program."""

    phase: str
    exchanges: int
    collectives: int
    step: str
    site: str = ""

    @property
    def order(self) -> tuple[int, int, int]:
        phase = PHASES.index(self.phase) if self.phase in PHASES else len(PHASES)
        return phase, self.exchanges, self.collectives

    def skipped_collective(self, other: Position) -> bool:
        """Whether this rank, and not the other, skipped one: it reached a later exchange after
        fewer collectives."""
        return self.exchanges > other.exchanges and self.collectives < other.collectives

    def as_json(self) -> dict[str, Any]:
        return {
            "phase": self.phase,
            "meetings": self.exchanges,
            "collectives": self.collectives,
            "step": self.step,
            "site": self.site,
        }

    def __str__(self) -> str:
        site = f", {self.site}" if self.site else ""
        return f"{self.phase} ({self.step}, collective {self.collectives}{site})"


def position_from_json(document: Mapping[str, Any]) -> Position:
    return Position(
        document["phase"],
        document["meetings"],
        document["collectives"],
        document["step"],
        document["site"],
    )


@dataclass
class Evidence:
    """What the reporting rank knows when the run must end."""

    # What each rank wrote before it ended.
    last_states: dict[int, Any] = field(default_factory=dict)
    # Phase, host and process of each rank when it last published them.
    locations: dict[int, Any] = field(default_factory=dict)
    process_states: dict[int, str] = field(default_factory=dict)
    # Ranks that could write their last state only to the disk, not into the store.
    cut_off: list[int] = field(default_factory=list)

    @property
    def positions(self) -> dict[int, Position]:
        positions = {}
        for rank, state in sorted(self.last_states.items()):
            positions[rank] = position_from_json(state["position"])
        return positions

    def differing_calls(self) -> Finding | None:
        calls = {rank: state["calls"] for rank, state in self.last_states.items()}
        return collective_log.compare(calls) if calls else None


def blame(evidence: Evidence, world_size: int, reason: str, cause: str) -> tuple[Finding, ...]:
    """The ranks that kept the others waiting, and why. Consequences are not reported.

    cause: the finding's id if no single rank is to blame.
    """
    silent = [rank for rank in range(world_size) if rank not in evidence.last_states]
    reported = []
    for rank, state in sorted(evidence.last_states.items()):
        for finding in from_json(state["outcome"]).findings:
            reported.append(with_rank(finding, rank))
    if reported:
        return root_causes(reported, silent, evidence)
    if silent:
        return merge_equal(absence_findings(silent, evidence))
    positions = evidence.positions
    message = f"{reason}: {_describe_positions(positions)}"
    if cause == "interrupted":
        return (Finding(cause, message, tuple(positions)),)
    if evidence.cut_off:
        message = f"no longer reaches the store: {_describe_positions(positions)}"
        return (Finding("link-lost", message, tuple(evidence.cut_off)),)
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
    reported: Sequence[Finding], silent: Sequence[int], evidence: Evidence
) -> tuple[Finding, ...]:
    """The causes among what ranks reported, and among the silent ranks.

    After a rank left with an error, a silent rank whose process lives is only waiting: it is no
    cause. A backend error follows from a rank that ended or called a different collective;
    otherwise it is itself the cause (out of memory, for example).
    """
    ended = [rank for rank in silent if evidence.process_states.get(rank) in STATE_FINDINGS]
    causes = [finding for finding in reported if finding.id not in CONSEQUENCES]
    if causes:
        return merge_equal([*absence_findings(ended, evidence), *causes])
    absent = ended
    if not absent:
        states = evidence.process_states
        absent = [rank for rank in silent if states.get(rank) != processes.ALIVE]
    if absent:
        return merge_equal(absence_findings(absent, evidence))
    differing = evidence.differing_calls()
    if differing is not None and differing.id == "collective-mismatch":
        return (differing,)
    return merge_equal(reported)


def absence_findings(ranks: Sequence[int], evidence: Evidence) -> list[Finding]:
    """Findings about ranks that report nothing themselves."""
    findings = []
    for rank in ranks:
        if rank not in evidence.locations:
            findings.append(Finding("rank-missing", "it never reached the store", (rank,)))
            continue
        location = evidence.locations[rank]
        process_state = evidence.process_states.get(rank, "")
        finding_id, state = STATE_FINDINGS.get(process_state, ("rank-silent", "it does not answer"))
        message = f"{state}, last seen in {location['phase']} on {location['host']}"
        findings.append(Finding(finding_id, message, (rank,)))
    return findings


def failing_phase(evidence: Evidence, own_phase: str) -> str:
    """The earliest phase that any rank is in; if ranks left with an error, that any of those is
    in."""
    phases = []
    phases_with_error = []
    for state in evidence.last_states.values():
        phases.append(state["position"]["phase"])
        if state["outcome"]["findings"]:
            phases_with_error.append(state["position"]["phase"])
    for rank, location in evidence.locations.items():
        if rank not in evidence.last_states:
            phases.append(location["phase"])
    candidates = phases_with_error or phases
    phases_of_test = [phase for phase in candidates if phase in PHASES]
    return min(phases_of_test, key=PHASES.index, default=own_phase)


def _are_calls_comparable(positions: Sequence[Position]) -> bool:
    """Whether the ranks wait for one another, in a collective or at the exchange after it: only
    then does comparing their calls say something."""
    for position in positions:
        if any(position.skipped_collective(other) for other in positions):
            return True
    furthest = max((position.collectives for position in positions), default=0)
    return all(position.collectives == furthest and position.site for position in positions)


def _describe_positions(positions: Mapping[int, Position]) -> str:
    """Where every rank is; ranks in the same place together."""
    ranks_by_place: dict[str, list[int]] = {}
    for rank, position in positions.items():
        ranks_by_place.setdefault(str(position), []).append(rank)
    if len(ranks_by_place) == 1 and len(positions) > 1:
        return f"all ranks are in {next(iter(ranks_by_place))}"
    return "; ".join(f"{name_ranks(ranks)} in {place}" for place, ranks in ranks_by_place.items())


def state_path(out: Path, rank: int) -> Path:
    return out / f"rank{rank}.stuck.json"


def location_path(out: Path, rank: int) -> Path:
    return out / f"rank{rank}.at.json"


def last_state(
    run: str,
    rank: int,
    host: str,
    reason: str,
    position: Position,
    calls: list[list[Any]],
    outcome: dict[str, Any],
) -> dict[str, Any]:
    """What a rank writes before it ends. outcome: of the phase, if the rank had left it."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    stack = traceback.format_stack(frame) if frame else []
    return {
        "schema": 2,
        "kind": "stuck",
        "run": run,
        "rank": rank,
        "host": host,
        "reason": reason,
        "position": position.as_json(),
        "calls": calls[-REPORTED_CALLS:],
        "outcome": outcome,
        "stack": [line.rstrip() for line in stack],
    }


def write_last_state(state: dict[str, Any], out: Path, client: StoreClient | None) -> bool:
    """Writes a file first, which needs no other process, then the store.

    Returns whether the store took it: a store whose host is stopped would never answer.
    """
    content = json.dumps(state, indent=2) + "\n"
    fs.atomic_write(state_path(out, state["rank"]), content.encode())
    if client is None:
        return False
    return _answers_within(ANSWER_S, lambda: client.set(f"stuck/{state['rank']}", state))


def _answers_within(seconds: float, call: Callable[[], Any]) -> bool:
    """Whether the store answered in time; if not, the call goes on in its own thread."""
    answered = threading.Event()

    def run() -> None:
        with contextlib.suppress(StoreLost):
            call()
            answered.set()

    threading.Thread(target=run, daemon=True).start()
    return answered.wait(seconds)


def write_location(out: Path, rank: int, location: dict[str, Any]) -> None:
    fs.atomic_write(location_path(out, rank), json.dumps(location).encode())


def read_locations(
    client: StoreClient | None,
    out: Path,
    world_size: int,
    agreed: Mapping[int, Any],
    run: str,
) -> dict[int, Any]:
    """Phase, host and process of every rank that ever published them.

    From the store; if that no longer answers, as last agreed; for ranks that never reached the
    store, from the files next to the report.
    """
    locations = {}
    for rank in range(world_size):
        location = _peek(client, f"at/{rank}") or agreed.get(rank)
        location = location or _read_of_run(location_path(out, rank), run)
        if location is not None:
            locations[rank] = location
    return locations


def process_states(locations: Mapping[int, Any], ranks: Sequence[int]) -> dict[int, str]:
    return {
        rank: processes.state(locations[rank]["process"]) for rank in ranks if rank in locations
    }


def collect_evidence(
    client: StoreClient | None,
    out: Path,
    world_size: int,
    agreed: Mapping[int, Any],
    run: str,
) -> Evidence:
    """What the ranks wrote into the store or next to the report, and the process states of those
    that wrote nothing. Waits GRACE_S at most."""
    evidence = Evidence(locations=read_locations(client, out, world_size, agreed, run))
    ranks = range(world_size)
    in_store: set[int] = set()
    deadline = time.monotonic() + GRACE_S
    while True:
        for rank in ranks:
            if time.monotonic() >= deadline:
                break
            state = None if rank in in_store else _peek(client, f"stuck/{rank}")
            if state is not None:
                in_store.add(rank)
            elif rank not in evidence.last_states:
                state = _read_of_run(state_path(out, rank), run)
            if state is not None:
                evidence.last_states[rank] = state
        silent = [rank for rank in ranks if rank not in evidence.last_states]
        evidence.process_states = process_states(evidence.locations, silent)
        complete = in_store if client is not None else set(evidence.last_states)
        awaited = []
        for rank in ranks:
            if rank not in complete and evidence.process_states.get(rank) not in STATE_FINDINGS:
                awaited.append(rank)
        if not awaited or time.monotonic() >= deadline:
            break
        time.sleep(POLL_S)
    if client is not None:
        evidence.cut_off = _cut_off_ranks(evidence, in_store)
    return evidence


def _cut_off_ranks(evidence: Evidence, in_store: set[int]) -> list[int]:
    """Ranks on hosts that reached the store before, but now only a shared disk."""
    hosts = {rank: state["host"] for rank, state in evidence.last_states.items()}
    reaching_hosts = {hosts[rank] for rank in in_store}
    cut_off = []
    for rank, host in sorted(hosts.items()):
        if rank in evidence.locations and host not in reaching_hosts:
            cut_off.append(rank)
    return cut_off


def is_reported(client: StoreClient | None) -> bool:
    """Whether rank 0 has reported the end already."""
    return _peek(client, "reported") is not None


def kill_silent_ranks(evidence: Evidence, ranks: Sequence[int]) -> None:
    """Kills ranks of this host that could not even write their last state: they would outlive the
    run."""
    for rank in ranks:
        if rank in evidence.locations and rank not in evidence.last_states:
            processes.kill(evidence.locations[rank]["process"])


def _peek(client: StoreClient | None, key: str) -> Any:
    try:
        return client.peek(key) if client is not None else None
    except StoreLost:
        return None


def _read_of_run(path: Path, run: str) -> Any:
    """The document in a file; None if there is none, or if an earlier run left it there."""
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return document if document is not None and document.get("run") == run else None
