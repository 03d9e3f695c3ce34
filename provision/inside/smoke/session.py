"""What one rank has in hand while the phases run: its options and place, and after rendezvous its way to the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .ending import Position
from .meeting import Mailbox, StoreLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from .meeting import Meeting
    from .options import Options
    from .place import Place

# An exchange gives up only after the deadline: the watchdog comes first, since it knows where every rank stands.
BEYOND_S = 10.0


@dataclass
class Session:
    options: Options
    place: Place
    remaining_s: Callable[[], float]
    facts: dict[str, Any] = field(default_factory=dict)
    backend: str = "unknown"
    device: str = "unknown"
    # Why the backend cannot work on this rank, if it cannot.
    unusable: str = ""
    hosts: list[str] = field(default_factory=list)
    # On rank 0 this object is the store's server: it lives as long as the session.
    store: Any = None
    mailbox: Mailbox | None = None
    meeting: Meeting | None = None
    # The watchdog's own connection: the main one is locked while the main thread waits in it.
    watchdog_mailbox: Mailbox | None = None
    phase: str = "start"
    meetings: int = 0
    collectives: int = 0
    step: str = "start"

    @property
    def on_gpu(self) -> bool:
        return self.device.startswith("cuda")

    @property
    def position(self) -> Position:
        return Position(self.phase, self.meetings, self.collectives, self.step)

    def begin(self, phase: str) -> None:
        self.phase = phase
        self.step = f"begin {phase}"
        if self.mailbox is not None:
            self.mailbox.post(f"at/{self.place.rank}", phase)

    def enter(self, step: str) -> None:
        """Note that a collective begins: what this rank was waiting in when a deadline passed."""
        self.collectives += 1
        self.step = step

    def exchange(self, name: str, payload: Any, is_bad_news: Callable[[Any], bool] = lambda _: False) -> list[Any]:
        """Every rank's payload on every rank. Raises RanksMissing after bad news, or StoreLost."""
        if self.meeting is None:
            raise StoreLost("no store was reached yet")
        self.meetings += 1
        self.step = f"exchange {name}"
        return self.meeting.exchange(name, payload, max(self.remaining_s(), 0) + BEYOND_S, is_bad_news)
