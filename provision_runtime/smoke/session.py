"""What one rank has in hand while the phases run: its options and place, and after rendezvous its way to the others."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .. import fs
from ..comm.processes import own_identity
from ..comm.store import StoreClient, StoreLost
from . import postmortem
from .collective_log import CallLog
from .postmortem import Position

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ..comm.store import StoreAllGather
    from .options import Options
    from .rank_env import Place

# An exchange gives up only after the deadline: the watchdog comes first, since it knows where every rank stands.
BEYOND_S = 10.0
# Ranks to two cores from which on the deadlines of phases grow with their number.
CROWD = 4


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
    # Where every rank was when all met: phase, host and process.
    met: dict[int, dict[str, Any]] = field(default_factory=dict)
    # How many ranks share a core where they are most crowded: by so much less is repeated, on all ranks alike.
    crowding: int = 1
    # On rank 0 this object is the store's server: it lives as long as the session.
    store: Any = None
    mailbox: StoreClient | None = None
    meeting: StoreAllGather | None = None
    # The watchdog's own connection: the main one is locked while the main thread waits in it.
    watchdog_mailbox: StoreClient | None = None
    # Folders that a phase makes and takes away again; where it comes no more to that, the watchdog does it.
    leftovers: list[Path] = field(default_factory=list)
    phase: str = "start"
    meetings: int = 0
    calls: CallLog = field(default_factory=CallLog)
    step: str = "start"
    site: str = ""

    @property
    def on_gpu(self) -> bool:
        return self.device.startswith("cuda")

    @property
    def gpu(self) -> int | None:
        """The index of this rank's GPU, which is not its local rank where a launcher shows each rank only its own."""
        return int(self.device.split(":")[1]) if self.on_gpu else None

    @property
    def leniency(self) -> float:
        """By how much deadlines that nobody asked for are longer: 64 ranks on 2 cores import torch one after the other."""
        return max(1.0, max(self.crowding, self.place.crowding) / CROWD)

    @property
    def position(self) -> Position:
        return Position(self.phase, self.meetings, self.calls.count, self.step, self.site)

    def begin(self, phase: str) -> None:
        self.phase = phase
        self.step = f"begin {phase}"
        self.site = ""
        self.say_where()

    def say_where(self) -> None:
        """Leave word in which phase this rank is, and which process it is: in the store, or beside the report until it is reached."""
        where = self.where()
        if self.mailbox is None:
            postmortem.say_where(self.options.out, self.place.rank, where)
        else:
            self.mailbox.set(f"at/{self.place.rank}", where)
            fs.remove_if_exists(postmortem.at_path(self.options.out, self.place.rank))

    def clear_leftovers(self) -> None:
        """On every rank: where a folder is not shared, each has its own."""
        while self.leftovers:
            shutil.rmtree(str(self.leftovers.pop()), ignore_errors=True)

    @property
    def last_met(self) -> dict[int, dict[str, Any]]:
        """All ranks as they were met last, which was at the end of the phase before this one."""
        return {rank: {**where, "phase": self.phase} for rank, where in self.met.items()}

    def where(self) -> dict[str, Any]:
        return {
            "phase": self.phase,
            "host": self.place.host,
            "process": own_identity(),
            "run": self.place.run,
        }

    def enter(self, op: str, detail: str = "") -> None:
        """Note that a collective begins, outside of what is timed. op and detail must be the same on all ranks."""
        call = self.calls.note(f"{op} {detail}".rstrip(), depth=3)
        self.step = call.what
        self.site = call.site

    def exchange(
        self, name: str, payload: Any, is_bad_news: Callable[[Any], bool] = lambda _: False
    ) -> list[Any]:
        """Every rank's payload on every rank: a barrier with a name, through the store.

        Raises RanksMissing after bad news, PhaseAbandoned when a rank left the phase with an error, or StoreLost.
        """
        self._about_to_meet(name)
        assert self.meeting is not None
        return self.meeting.exchange(
            name, payload, self._patience_s(), is_bad_news, abort_key=f"abandoned/{self.phase}"
        )

    def agree(self, name: str, payload: Any, is_bad_news: Callable[[Any], bool]) -> list[Any]:
        """The exchange at the end of a phase, to which ranks come also from the middle of it."""
        self._about_to_meet(name)
        assert self.meeting is not None
        return self.meeting.exchange_once(name, payload, self._patience_s(), is_bad_news)

    def abandon(self) -> None:
        """Let the others know that this rank leaves the phase with an error: nobody shall wait for it there."""
        if self.mailbox is not None:
            self.mailbox.set(f"abandoned/{self.phase}", self.place.rank)

    def _about_to_meet(self, name: str) -> None:
        if self.meeting is None:
            raise StoreLost("no store was reached yet")
        self.meetings += 1
        self.step = f"exchange {name}"
        self.site = ""

    def _patience_s(self) -> float:
        return max(self.remaining_s(), 0) + BEYOND_S
