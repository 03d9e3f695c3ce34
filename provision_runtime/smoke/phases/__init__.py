"""The phases of the smoke test. Each has run(), which every rank calls, and merge(), which turns
all ranks' outcomes into one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...dataclass import frozen
from ..context import RankContext
from ..outcome import Outcome, combine
from . import (
    barrier,
    checkpoint,
    collectives,
    compute,
    ddp,
    facts,
    filesystem,
    rendezvous,
)


@frozen
class Phase:
    name: str
    deadline_s: float
    run: Callable[[RankContext], Outcome]
    merge: Callable[[Sequence[Outcome]], Outcome] = combine


# Deadlines are for slow, shared hardware: they end a hang, they do not judge speed. facts includes
# the import of torch, which took minutes from a cold network file system; DistributedDataParallel
# imports the compiler, for a second per rank: minutes where many ranks share few cores.
ALL = (
    Phase("facts", 240.0, facts.run, facts.merge),
    Phase("rendezvous", 60.0, rendezvous.run),
    Phase("barrier", 60.0, barrier.run, barrier.merge),
    Phase("collectives", 300.0, collectives.run),
    Phase("compute", 90.0, compute.run),
    Phase("ddp", 300.0, ddp.run),
    Phase("filesystem", 120.0, filesystem.run),
    Phase("checkpoint", 90.0, checkpoint.run),
)
