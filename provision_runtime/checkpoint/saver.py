"""Saving a state dict, now or in the background."""

from __future__ import annotations

import operator
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Callable

from . import manifest, streams
from .async_save import BackgroundSave, HostSnapshot
from .commit import commit
from .items import SavePlan
from .plan import plan_save
from .progress import line_printer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future

    from ..comm.ranks import Ranks
    from .backends import Backend
    from .progress import SaveCallback, SaveProgress


@dataclass(frozen=True)
class SaveReport:
    """A save that was committed.

    Attributes:
        step: The number of the step.
        folder: The checkpoint's path, or its URL.
        bytes: Bytes of tensors in the checkpoint, over all ranks.
        written: Bytes of them that were written.
        linked: Bytes of them that were linked, because the parent has them.
        plan_s: Seconds in which this rank planned.
        snapshot_s: Seconds in which this rank copied to host memory (save_async; else 0).
        write_s: Seconds in which this rank wrote.
        commit_s: Seconds from then until all ranks saw the checkpoint.
    """

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
        """Bytes per second from the first write to the commit: bytes / (write_s + commit_s)."""
        seconds = self.write_s + self.commit_s
        return self.bytes / seconds if seconds else 0.0


@dataclass(frozen=True)
class SaveRequest:
    """What `checkpoint.save` was called with. open_backend: opens the root."""

    state_dict: Mapping[str, object]
    open_backend: Callable[[], Backend]
    step: int
    ranks: Ranks
    metadata: Mapping[str, object] | None = None
    incremental: bool = True
    for_dcp: bool | None = None
    progress: SaveCallback | None = None


BACKGROUND = BackgroundSave()
SNAPSHOT = HostSnapshot()


def save(request: SaveRequest) -> SaveReport:
    BACKGROUND.finish()
    return _prepare(request, copies=False)()


def save_async(
    request: SaveRequest, after: Callable[[], None] = lambda: None
) -> Future[SaveReport]:
    """after: called in the background once the checkpoint is committed."""
    BACKGROUND.finish()
    write = _prepare(request, copies=True)

    def run() -> SaveReport:
        report = write()
        after()
        return report

    return BACKGROUND.start(run)


def _prepare(request: SaveRequest, copies: bool) -> Callable[[], SaveReport]:
    """Plans the save, and copies the state to host memory; returns what writes it."""
    started = time.monotonic()
    step, backend, problem = 0, None, None
    try:
        step = check_step(request.step)
        manifest.check_metadata(request.metadata)
        backend = request.open_backend()
    except Exception as error:
        # It is raised at the first exchange of the ranks: raised here, it would leave the others
        # waiting there, and one save behind from then on.
        problem = error
    plan = plan_save(request.state_dict, request.ranks, request.for_dcp, problem)
    plan = replace(plan, metadata=request.metadata or {})
    assert backend is not None
    planned = time.monotonic()
    progress = request.progress or line_printer(f"saving step {step}", request.ranks)
    try:
        tensors = (item.data for item in plan.items if not item.is_object)
        streams.wait_for(streams.devices_of(tensors))
        if copies:
            plan = SNAPSHOT.take(plan)
    except (MemoryError, RuntimeError) as error:
        plan, progress = SavePlan(()), _raise_in_callback(error)
    copied = time.monotonic()

    def write() -> SaveReport:
        committed = commit(
            backend,
            step,
            plan,
            request.ranks,
            incremental=request.incremental,
            progress=progress,
        )
        total = committed.progress
        return SaveReport(
            step=step,
            folder=f"{backend.root}/{committed.folder}",
            bytes=total.total,
            written=total.written,
            linked=total.linked,
            plan_s=planned - started,
            snapshot_s=copied - planned if copies else 0.0,
            write_s=committed.write_s,
            commit_s=committed.commit_s,
        )

    return write


def check_step(step: int) -> int:
    """Raises ValueError unless it is a whole number of 0 or more."""
    try:
        number = -1 if isinstance(step, bool) else operator.index(step)
    except TypeError:
        number = -1
    if number < 0:
        raise ValueError(f"step={step!r}: it must be a whole number of 0 or more")
    return number


def _raise_in_callback(error: Exception) -> SaveCallback:
    """A callback that raises the error when the ranks next exchange values: raised earlier, it
    would leave the others waiting.
    """

    def progress(_: SaveProgress) -> None:
        raise error

    return progress
