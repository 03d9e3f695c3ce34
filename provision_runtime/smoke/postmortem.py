"""What a rank leaves behind when it must end early: where it stood, and on one rank who kept whom waiting.

`Position` and `judge` are pure; the rest runs in the watchdog's thread while the main thread hangs.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
import traceback
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from .. import fs
from ..comm import processes
from ..comm.ranks import name_ranks
from ..comm.store import StoreLost
from . import collective_log
from .options import PHASES
from .outcome import Finding, from_json, united, with_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from ..comm.store import StoreClient

# All ranks notice a deadline within a tick of one another; this is how long the reporting rank waits for their word.
GRACE_S = 2.0
POLL_S = 0.05
# How long the store may take for an answer when the run ends.
ANSWER_S = 1.0
# Of its latest calls a rank tells so many: two ranks that differ do so in the last few.
TOLD_CALLS = 32
FATES = {
    processes.GONE: ("rank-died", "its process is gone"),
    processes.STOPPED: ("rank-stopped", "its process is stopped"),
}
# What the others say of a rank that says nothing itself.
ABSENCES = ("rank-died", "rank-stopped", "rank-missing", "rank-silent")
# What a rank says because another one is gone or in another collective.
CONSEQUENCES = ("backend-error", "store-lost")


@dataclass(frozen=True)
class Position:
    """Where a rank is: the phase, how many meetings and collectives it has begun, the latest of them, and its place in the program."""

    phase: str
    meetings: int
    collectives: int
    step: str
    site: str = ""

    @property
    def order(self) -> tuple[int, int, int]:
        return (
            PHASES.index(self.phase) if self.phase in PHASES else len(PHASES),
            self.meetings,
            self.collectives,
        )

    def skipped(self, other: Position) -> bool:
        """Whether this rank left out a collective: it came to a later meeting with fewer of them behind it."""
        return self.meetings > other.meetings and self.collectives < other.collectives

    def __str__(self) -> str:
        place = f", {self.site}" if self.site else ""
        return f"{self.phase} ({self.step}, collective {self.collectives}{place})"


@dataclass
class Known:
    """What the reporting rank knows when the run must end: the ranks' own words by rank, where each was last heard of
    (phase, host, process), what became of its process, and which ranks could only leave their word on the disk."""

    words: dict[int, Any] = field(default_factory=dict)
    seen: dict[int, Any] = field(default_factory=dict)
    fates: dict[int, str] = field(default_factory=dict)
    cut_off: list[int] = field(default_factory=list)

    @property
    def standing(self) -> dict[int, Position]:
        return {rank: Position(**word["position"]) for rank, word in sorted(self.words.items())}


def judge(known: Known, world_size: int, reason: str, cause: str) -> tuple[Finding, ...]:
    """Who kept the others waiting, and only that: what follows from it is no finding of its own.

    cause: the finding's id when nobody in particular is to blame.
    """
    silent = [rank for rank in range(world_size) if rank not in known.words]
    own = [
        with_rank(finding, rank)
        for rank, word in sorted(known.words.items())
        for finding in from_json(word["outcome"]).findings
    ]
    if own:
        return explained(own, silent, known)
    if silent:
        return united(absent(silent, known))
    if cause == "interrupted":
        return (Finding(cause, f"{reason}: {_where(known.standing)}", tuple(known.standing)),)
    if known.cut_off:
        return (
            Finding(
                "link-lost",
                f"no longer reaches the store: {_where(known.standing)}",
                tuple(known.cut_off),
            ),
        )
    differing = (
        collective_log.compare({rank: word["calls"] for rank, word in known.words.items()})
        if _compares(known)
        else None
    )
    if differing is not None:
        return (differing,)
    behind = _behind(known.standing)
    if behind:
        return united(
            [Finding("rank-stuck", f"{reason}: {known.standing[rank]}", (rank,)) for rank in behind]
        )
    return (Finding(cause, f"{reason}: {_where(known.standing)}", tuple(known.standing)),)


def explained(own: Sequence[Finding], silent: Sequence[int], known: Known) -> tuple[Finding, ...]:
    """Of what ranks say and of ranks that say nothing, the causes.

    A rank that left with an error leaves the others waiting: who lives and is silent waits, and is no cause. An error of the backend
    follows from a rank that ended or from another collective; without either it is itself the cause (out of memory, say).
    """
    gone = [rank for rank in silent if known.fates.get(rank) in FATES]
    causes = [finding for finding in own if finding.id not in CONSEQUENCES]
    if causes:
        return united([*absent(gone, known), *causes])
    lost = gone or [rank for rank in silent if known.fates.get(rank) != processes.ALIVE]
    if lost:
        return united(absent(lost, known))
    differing = (
        collective_log.compare({rank: word["calls"] for rank, word in known.words.items()})
        if known.words
        else None
    )
    return (
        (differing,)
        if differing is not None and differing.id == "collective-mismatch"
        else united(own)
    )


def absent(ranks: Sequence[int], known: Known) -> list[Finding]:
    """What is to be said of ranks that say nothing themselves."""
    found = []
    for rank in ranks:
        if rank not in known.seen:
            found.append(Finding("rank-missing", "it never reached the store", (rank,)))
            continue
        last = f"last seen in {known.seen[rank]['phase']} on {known.seen[rank]['host']}"
        id, what = FATES.get(known.fates.get(rank, ""), ("rank-silent", "it does not answer"))
        found.append(Finding(id, f"{what}, {last}", (rank,)))
    return found


def _compares(known: Known) -> bool:
    """Calls are compared only between ranks that wait for one another: in a collective, or at the meeting after it."""
    standing = known.standing.values()
    furthest = max((position.collectives for position in standing), default=0)
    return any(position.skipped(other) for position in standing for other in standing) or all(
        position.collectives == furthest and position.site for position in standing
    )


def _behind(standing: Mapping[int, Position]) -> list[int]:
    front = max((position.order for position in standing.values()), default=(0, 0, 0))
    return [rank for rank in sorted(standing) if standing[rank].order < front]


def _where(standing: Mapping[int, Position]) -> str:
    """Where every rank stands, ranks in one place named together."""
    places: dict[str, list[int]] = {}
    for rank, position in standing.items():
        places.setdefault(str(position), []).append(rank)
    if len(places) == 1 and len(standing) > 1:
        return f"all ranks are in {next(iter(places))}"
    return "; ".join(f"{name_ranks(ranks)} in {place}" for place, ranks in places.items())


def failing_phase(known: Known, own: str) -> str:
    """The phase of the rank that is furthest behind; of those that left with an error of their own, if there are any."""
    told = [
        word["position"]["phase"] for word in known.words.values() if word["outcome"]["findings"]
    ]
    everywhere = [word["position"]["phase"] for word in known.words.values()]
    everywhere += [seen["phase"] for rank, seen in known.seen.items() if rank not in known.words]
    return min(
        (phase for phase in told or everywhere or [own] if phase in PHASES),
        key=PHASES.index,
        default=own,
    )


def stack_of_main_thread() -> list[str]:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return [line.rstrip() for line in traceback.format_stack(frame)] if frame else []


def stuck_path(out: Path, rank: int) -> Path:
    return out / f"rank{rank}.stuck.json"


def describe(
    run: str,
    rank: int,
    host: str,
    reason: str,
    position: Position,
    latest: list[list[Any]],
    outcome: dict[str, Any],
) -> dict[str, Any]:
    """The word this rank leaves. outcome: what it had to say of the phase, if it was done with it."""
    return {
        "schema": 2,
        "kind": "stuck",
        "run": run,
        "rank": rank,
        "host": host,
        "reason": reason,
        "position": asdict(position),
        "calls": latest[-TOLD_CALLS:],
        "outcome": outcome,
        "stack": stack_of_main_thread(),
    }


def leave_word(word: dict[str, Any], out: Path, mailbox: StoreClient | None) -> bool:
    """As a file first, which needs nobody else. Whether the store took it: one whose host is stopped would be waited for, for ever."""
    fs.atomic_write(stuck_path(out, word["rank"]), (json.dumps(word, indent=2) + "\n").encode())
    return mailbox is not None and _within(
        ANSWER_S, lambda: mailbox.set(f"stuck/{word['rank']}", word)
    )


def _within(seconds: float, ask: Callable[[], Any]) -> bool:
    """Whether the store answered within these seconds; a call that did not is left behind."""
    answered = threading.Event()

    def run() -> None:
        with contextlib.suppress(StoreLost):
            ask()
            answered.set()

    threading.Thread(target=run, daemon=True).start()
    return answered.wait(seconds)


def last_seen(
    mailbox: StoreClient | None, out: Path, world_size: int, met: Mapping[int, Any], run: str
) -> dict[int, Any]:
    """Phase, host and process of the ranks that were ever heard of: in the store; when all met, if the store does not answer any
    more; or, before they reached it, beside the report."""
    seen = {
        rank: _peek(mailbox, f"at/{rank}")
        or met.get(rank)
        or _of_run(_read(at_path(out, rank)), run)
        for rank in range(world_size)
    }
    return {rank: where for rank, where in seen.items() if where is not None}


def at_path(out: Path, rank: int) -> Path:
    return out / f"rank{rank}.at.json"


def say_where(out: Path, rank: int, where: dict[str, Any]) -> None:
    fs.atomic_write(at_path(out, rank), json.dumps(where).encode())


def fates(seen: Mapping[int, Any], ranks: Sequence[int]) -> dict[int, str]:
    return {rank: processes.state(seen[rank]["process"]) for rank in ranks if rank in seen}


def gather(
    mailbox: StoreClient | None, out: Path, world_size: int, met: Mapping[int, Any], run: str
) -> Known:
    """What the ranks left, in the store or beside the report, and what became of those that left nothing."""
    known = Known(seen=last_seen(mailbox, out, world_size, met, run))
    ranks = range(world_size)
    posted: set[int] = set()
    end = time.monotonic() + GRACE_S
    while True:
        for rank in ranks:
            if time.monotonic() >= end:
                break
            told = None if rank in posted else _peek(mailbox, f"stuck/{rank}")
            left = told or (
                None if rank in known.words else _of_run(_read(stuck_path(out, rank)), run)
            )
            if told is not None:
                posted.add(rank)
            if left is not None:
                known.words[rank] = left
        known.fates = fates(known.seen, [rank for rank in ranks if rank not in known.words])
        told_all = posted if mailbox is not None else known.words
        waited_for = [
            rank for rank in ranks if rank not in told_all and known.fates.get(rank) not in FATES
        ]
        if not waited_for or time.monotonic() >= end:
            break
        time.sleep(POLL_S)
    known.cut_off = _cut_off(known, posted) if mailbox is not None else []
    return known


def _cut_off(known: Known, posted: set[int]) -> list[int]:
    """Ranks of other hosts that were in the store before and now could only leave their word on a shared disk."""
    hosts = {rank: word["host"] for rank, word in known.words.items()}
    reached = {hosts[rank] for rank in posted}
    return [
        rank
        for rank, host in sorted(hosts.items())
        if rank not in posted and rank in known.seen and host not in reached
    ]


def is_reported(mailbox: StoreClient | None) -> bool:
    """Whether rank 0 has reported the end already."""
    return _peek(mailbox, "reported") is not None


def end_silent(known: Known, ranks: Sequence[int]) -> None:
    """Ranks on this host that could not even leave a word would outlive the run."""
    for rank in ranks:
        if rank in known.seen and rank not in known.words:
            processes.kill(known.seen[rank]["process"])


def _peek(mailbox: StoreClient | None, key: str) -> Any:
    try:
        return mailbox.peek(key) if mailbox is not None else None
    except StoreLost:
        return None


def _of_run(left: Any, run: str) -> Any:
    """What an earlier run left in the same folder is not this one's."""
    return left if left is not None and left.get("run") == run else None


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None
