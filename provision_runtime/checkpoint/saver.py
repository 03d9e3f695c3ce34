"""Saving a state dict, at once or behind the training's back."""

from __future__ import annotations

import operator
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Callable

from . import streams
from .async_save import Background
from .commit import commit
from .host_snapshot import Snapshot
from .items import Plan
from .plan import plan_save
from .recalling import Recall

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future

    from ..comm.ranks import Ranks
    from .backends import Backend
    from .items import Place
    from .progress import Committed, Doing
    from .recalling import Stamp


@dataclass(frozen=True)
class SaveReport:
    """What a save did. Bytes are of tensors, over all ranks: written anew, or linked since the parent has them. Seconds are this
    rank's: planning, copying to host memory (save_async), writing, committing."""

    step: int
    folder: str
    bytes: int
    written: int
    linked: int
    plan_s: float
    snapshot_s: float
    write_s: float
    commit_s: float

    @property
    def rate(self) -> float:
        """Bytes per second from the first write to the commit."""
        return self.bytes / (self.write_s + self.commit_s) if self.write_s + self.commit_s else 0.0


BACKGROUND = Background()
SNAPSHOT = Snapshot()
RECALL = Recall()
CONTENT, VERSION = "content", "version"


def save(
    state_dict: Mapping[str, Any],
    opened: Callable[[], Backend],
    step: int,
    ranks: Ranks,
    *,
    incremental: bool,
    unchanged: str,
    for_dcp: bool = True,
    progress: Callable[[Doing], None],
) -> SaveReport:
    BACKGROUND.finish()
    started = time.monotonic()
    step, backend, problem = _checked(opened, step, unchanged)
    plan = plan_save(state_dict, ranks, for_dcp, problem)
    assert backend is not None
    stamps: dict[Place, Stamp] = {}
    try:
        streams.wait_for(streams.of(item.data for item in plan.items if not item.is_object))
        stamps = RECALL.stamps(plan) if unchanged == VERSION else {}
    except (MemoryError, RuntimeError) as error:
        plan, progress = Plan(()), _raising(error)
    plan = replace(plan, digests=RECALL.digests(stamps))
    planned = time.monotonic()
    made = commit(backend, step, plan, ranks, incremental=incremental, progress=progress)
    if unchanged == VERSION:
        RECALL.learn(plan.items, stamps, made.digests)
    return _report(backend, step, made, planned - started, 0.0)


def save_async(
    state_dict: Mapping[str, Any],
    opened: Callable[[], Backend],
    step: int,
    ranks: Ranks,
    *,
    incremental: bool,
    progress: Callable[[Doing], None],
) -> Future[SaveReport]:
    BACKGROUND.finish()
    started = time.monotonic()
    step, backend, problem = _checked(opened, step)
    plan = plan_save(state_dict, ranks, problem=problem)
    assert backend is not None
    planned = time.monotonic()
    try:
        copied = SNAPSHOT.take(plan)
    except (MemoryError, RuntimeError) as error:
        copied, progress = Plan(()), _raising(error)
    snapshot_s = time.monotonic() - planned

    def write() -> SaveReport:
        made = commit(backend, step, copied, ranks, incremental=incremental, progress=progress)
        SNAPSHOT.learn(made.digests)
        return _report(backend, step, made, planned - started, snapshot_s)

    return BACKGROUND.start(write)


def checked_step(step: int) -> int:
    """Raises ValueError unless it is a whole number that is not negative."""
    try:
        number = -1 if isinstance(step, bool) else operator.index(step)
    except TypeError:
        number = -1
    if number < 0:
        raise ValueError(f"step={step!r}: it must be a whole number from 0 on")
    return number


def _checked(
    opened: Callable[[], Backend], step: int, unchanged: str = CONTENT
) -> tuple[int, Backend | None, Exception | None]:
    """What is wrong with what this rank was given is told where the ranks meet first: were it raised here, the others would wait there, and
    be one save behind from then on."""
    try:
        if unchanged not in (CONTENT, VERSION):
            raise ValueError(f"unchanged={unchanged!r}: it is {CONTENT!r} or {VERSION!r}")
        number = checked_step(step)
        return number, opened(), None
    except Exception as error:
        return 0, None, error


def _raising(error: Exception) -> Callable[[Doing], None]:
    """What failed before the ranks meet is told where they do, or the others would wait for this one in vain."""

    def progress(_: Doing) -> None:
        raise error

    return progress


def _report(
    backend: Backend, step: int, made: Committed, plan_s: float, snapshot_s: float
) -> SaveReport:
    done = made.done
    folder = f"{backend.root}/{made.folder}"
    return SaveReport(
        step,
        folder,
        done.total,
        done.written,
        done.linked,
        plan_s,
        snapshot_s,
        made.write_s,
        made.commit_s,
    )
