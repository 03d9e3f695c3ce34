"""What the phases of one rank work with: its options and environment, and after rendezvous its
connection to the other ranks."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ..comm.processes import this_process
from ..comm.store import StoreAllGather, StoreClient, StoreLost, never
from ..facts import oom
from . import last_states
from .collective_log import CallLog
from .measurement import RankCores, ranks_per_core
from .options import Options
from .postmortem import Location, Position
from .rank_env import RankEnv

# An exchange gives up only after the deadline: the watchdog comes first, since it knows where every
# rank is.
BEYOND_DEADLINE_S = 10.0
# With more ranks per core than this, the default deadlines grow with the number of ranks.
CROWDED = 8


@dataclass
class RankContext:
    options: Options
    env: RankEnv
    # Seconds until the deadline of the current phase.
    remaining_s: Callable[[], float]
    facts: dict[str, Any] = field(default_factory=dict)
    backend: str = "unknown"
    device: str = "unknown"
    # Why the backend cannot work on this rank; empty if it can.
    unusable: str = ""
    hosts: list[str] = field(default_factory=list)
    # Phase, host and process of every rank when all ranks first exchanged them.
    locations: dict[int, Location] = field(default_factory=dict)
    # The cores of every rank, known once all ranks have met.
    cores: list[RankCores] = field(default_factory=list)
    # On rank 0 this object is the store's server: it must live as long as this context.
    store: Any = None
    client: StoreClient | None = None
    all_gather: StoreAllGather | None = None
    # The watchdog's own connection: the main one is locked while the main thread waits in it.
    watchdog_client: StoreClient | None = None
    # Folders that a phase creates and deletes; if the rank ends before that, the watchdog deletes
    # them.
    temporary_folders: list[Path] = field(default_factory=list)
    phase: str = "start"
    exchanges: int = 0
    calls: CallLog = field(default_factory=CallLog)
    step: str = "start"
    in_collective: bool = False
    oom_counter: oom.OomCounter | None = field(default_factory=oom.this_counter)

    @property
    def on_gpu(self) -> bool:
        return self.device.startswith("cuda")

    @property
    def nccl_log(self) -> Path:
        return self.options.out / f"nccl{self.env.rank}.log"

    @property
    def gpu(self) -> int | None:
        """The index of this rank's GPU; not the local rank if each rank sees only its own GPU."""
        return int(self.device.split(":")[1]) if self.on_gpu else None

    @property
    def crowding(self) -> float:
        """Ranks per core on the most crowded host, at least 1: all ranks divide their repetitions
        by it."""
        crowding = ranks_per_core(self.cores) if self.cores else self.env.ranks_per_core
        return max(crowding, 1.0)

    @property
    def deadline_factor(self) -> float:
        """The default deadlines are multiplied by this: 64 ranks on 2 cores import torch one after
        the other."""
        return max(1.0, self.crowding / CROWDED)

    @property
    def position(self) -> Position:
        return Position(self.phase, self.exchanges, self.calls.count, self.step, self.in_collective)

    @property
    def location(self) -> Location:
        return Location(self.phase, self.env.host, this_process(), self.env.run, self.oom_counter)

    @property
    def is_first_of_host(self) -> bool:
        """Whether this is the lowest rank of its host; known once all ranks have met."""
        for rank, location in sorted(self.locations.items()):
            if location.host == self.env.host:
                return rank == self.env.rank
        return False

    @property
    def last_locations(self) -> dict[int, Location]:
        return {rank: replace(where, phase=self.phase) for rank, where in self.locations.items()}

    def synchronize(self) -> None:
        """Returns when the work queued on this rank's GPU is complete."""
        if self.on_gpu:
            import torch

            torch.cuda.synchronize()

    def begin_phase(self, phase: str) -> None:
        self.phase = phase
        self.step = f"begin {phase}"
        self.in_collective = False
        self.publish_location()

    def publish_location(self) -> None:
        """Writes this rank's phase and process into the store; before the store is reached, into a
        file next to the report."""
        if self.client is None:
            last_states.write_location(self.options.out, self.env.rank, self.location)
        else:
            self.client.set(f"at/{self.env.rank}", asdict(self.location))
            self.remove_location()

    def remove_location(self) -> None:
        last_states.location_path(self.options.out, self.env.rank).unlink(missing_ok=True)

    def remove_temporary_folders(self) -> None:
        """Call it on every rank: if the folder is not shared, each rank has its own."""
        while self.temporary_folders:
            shutil.rmtree(str(self.temporary_folders.pop()), ignore_errors=True)

    def begin_collective(self, operation: str, detail: str = "") -> None:
        """Logs a collective before it is called, outside of the timed section. The arguments must
        be the same on all ranks."""
        self.step = f"{operation} {detail}".rstrip()
        self.calls.log(self.step)
        self.in_collective = True

    def exchange(self, name: str, payload: Any) -> list[Any]:
        """Every rank's payload on every rank, through the store; also a named barrier.

        Raises RanksMissing when a rank did not respond, PhaseAbandoned when a rank left the phase
        with an error, and StoreLost.
        """
        all_gather, timeout_s = self._begin_exchange(name)
        abort_key = f"abandoned/{self.phase}"
        return all_gather.exchange(name, payload, timeout_s, abort_key)

    def agree(
        self, name: str, payload: Any, is_failure: Callable[[Any], bool] = never
    ) -> list[Any]:
        """The exchange at the end of a phase, to which ranks may come from anywhere in it."""
        all_gather, timeout_s = self._begin_exchange(name)
        return all_gather.exchange_once(name, payload, timeout_s, is_failure)

    def _begin_exchange(self, name: str) -> tuple[StoreAllGather, float]:
        if self.all_gather is None:
            raise StoreLost("no store was reached yet")
        self.exchanges += 1
        self.step = f"exchange {name}"
        self.in_collective = False
        return self.all_gather, max(self.remaining_s(), 0) + BEYOND_DEADLINE_S
