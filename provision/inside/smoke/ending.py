"""What a rank leaves behind when it must end early: where it stood, and on rank 0 who kept whom waiting.

`Position` and `blame` are pure; the rest runs in the watchdog's thread while the main thread hangs.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import traceback
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from .. import fs
from .meeting import StoreLost
from .options import PHASES
from .outcome import name_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .meeting import Mailbox

# All ranks notice a deadline within a tick of one another; this is how long rank 0 waits for their word.
GRACE_S = 2.0
POLL_S = 0.05


@dataclass(frozen=True)
class Position:
    """Where a rank is: the phase, how many meetings and collectives it has begun, and the latest of them."""

    phase: str
    meetings: int
    collectives: int
    step: str

    @property
    def order(self) -> tuple[int, int, int]:
        return (PHASES.index(self.phase) if self.phase in PHASES else len(PHASES), self.meetings, self.collectives)

    def skipped(self, other: Position) -> bool:
        """Whether this rank left out a collective: it came to a later meeting with fewer of them behind it."""
        return self.meetings > other.meetings and self.collectives < other.collectives

    def __str__(self) -> str:
        return f"{self.phase} ({self.step}, collective {self.collectives})"


def blame(standing: Mapping[int, Position], seen: Mapping[int, str], world_size: int) -> str:
    """Who kept the others waiting, in words. `seen` is the phase in which a rank was last heard of."""
    absent = [rank for rank in range(world_size) if rank not in standing]
    culprits = _culprits(standing)
    said = [f"rank {rank} does not answer ({_last_seen(seen.get(rank))})" for rank in absent]
    said += [f"rank {rank} {verb} {standing[rank]}" for rank, verb in culprits.items()]
    waiting = [rank for rank in sorted(standing) if rank not in culprits]
    if waiting:
        together = f"all ranks are in {standing[waiting[0]]}"
        said += [f"{name_ranks(waiting)} waits in {standing[waiting[0]]}" if said else together]
    return "; ".join(said)


def _culprits(standing: Mapping[int, Position]) -> dict[int, str]:
    """The ranks that left out a collective; without such ranks, those that are not as far as the first."""
    others = standing.values()
    skippers = [rank for rank, position in standing.items() if any(position.skipped(other) for other in others)]
    if skippers:
        return dict.fromkeys(sorted(skippers), "left out a collective and is in")
    front = max((position.order for position in others), default=(0, 0, 0))
    return {rank: "is behind, in" for rank in sorted(standing) if standing[rank].order < front}


def failing_phase(standing: Mapping[int, Position], own: str) -> str:
    """The phase of the rank that is furthest behind."""
    return min(standing.values(), key=lambda position: position.order).phase if standing else own


def stack_of_main_thread() -> list[str]:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return [line.rstrip() for line in traceback.format_stack(frame)] if frame else []


def stuck_path(out: Path, rank: int) -> Path:
    return out / f"rank{rank}.stuck.json"


def describe(rank: int, host: str, reason: str, position: Position) -> dict[str, Any]:
    """The word this rank leaves."""
    return {
        "schema": 1,
        "kind": "stuck",
        "rank": rank,
        "host": host,
        "reason": reason,
        "position": asdict(position),
        "stack": stack_of_main_thread(),
    }


def leave_word(word: dict[str, Any], out: Path, mailbox: Mailbox | None) -> None:
    """As a file first, which needs nobody else."""
    fs.atomic_write(stuck_path(out, word["rank"]), (json.dumps(word, indent=2) + "\n").encode())
    try:
        if mailbox is not None:
            mailbox.post(f"stuck/{word['rank']}", word)
    except StoreLost:
        return


def gather_words(mailbox: Mailbox | None, out: Path, world_size: int) -> tuple[dict[int, Any], dict[int, str]]:
    """What the ranks left, in the store or beside the report, and the phase each was last heard of in."""
    words: dict[int, Any] = {}
    end = time.monotonic() + GRACE_S
    while len(words) < world_size and time.monotonic() < end:
        for rank in range(world_size):
            found = words.get(rank) or _peek(mailbox, f"stuck/{rank}") or _read_stuck(out, rank)
            if found is not None:
                words[rank] = found
        time.sleep(POLL_S)
    seen = {rank: _peek(mailbox, f"at/{rank}") for rank in range(world_size)}
    return words, {rank: phase for rank, phase in seen.items() if phase is not None}


def positions(words: Mapping[int, Any]) -> dict[int, Position]:
    return {rank: Position(**word["position"]) for rank, word in sorted(words.items())}


def _peek(mailbox: Mailbox | None, key: str) -> Any:
    try:
        return mailbox.peek(key) if mailbox is not None else None
    except StoreLost:
        return None


def _read_stuck(out: Path, rank: int) -> Any:
    try:
        return json.loads(stuck_path(out, rank).read_text())
    except (OSError, ValueError):
        return None


def _last_seen(phase: str | None) -> str:
    return f"last seen in {phase}" if phase else "never seen"
