"""Saving a state dict, now or in the background."""

from __future__ import annotations

import json
import operator
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Callable

from . import manifest, streams
from .async_save import BackgroundSave, HostSnapshot
from .commit import commit
from .items import SavePlan
from .plan import plan_save

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future

    from ..comm.ranks import Ranks
    from .backends import Backend
    from .commit import Committed, ProgressCallback, SaveProgress


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


BACKGROUND = BackgroundSave()
SNAPSHOT = HostSnapshot()


def save(
    state_dict: Mapping[str, Any],
    open_backend: Callable[[], Backend],
    step: int,
    ranks: Ranks,
    *,
    incremental: bool,
    for_dcp: bool = True,
    metadata: Mapping[str, Any] | None = None,
    progress: ProgressCallback,
) -> SaveReport:
    BACKGROUND.finish()
    started = time.monotonic()
    step, backend, problem = _check_arguments(open_backend, step, metadata)
    plan = replace(plan_save(state_dict, ranks, for_dcp, problem), metadata=metadata or {})
    assert backend is not None
    try:
        tensors = (item.data for item in plan.items if not item.is_object)
        streams.wait_for(streams.devices_of(tensors))
    except (MemoryError, RuntimeError) as error:
        plan, progress = SavePlan(()), _raise_in_callback(error)
    plan_s = time.monotonic() - started
    committed = commit(backend, step, plan, ranks, incremental=incremental, progress=progress)
    return _report(backend, step, committed, plan_s, 0.0)


def save_async(
    state_dict: Mapping[str, Any],
    open_backend: Callable[[], Backend],
    step: int,
    ranks: Ranks,
    *,
    incremental: bool,
    metadata: Mapping[str, Any] | None = None,
    progress: ProgressCallback,
    after: Callable[[], None] = lambda: None,
) -> Future[SaveReport]:
    """after: called in the background once the checkpoint is committed."""
    BACKGROUND.finish()
    started = time.monotonic()
    step, backend, problem = _check_arguments(open_backend, step, metadata)
    plan = replace(plan_save(state_dict, ranks, problem=problem), metadata=metadata or {})
    assert backend is not None
    planned = time.monotonic()
    try:
        snapshot = SNAPSHOT.take(plan)
    except (MemoryError, RuntimeError) as error:
        snapshot, progress = SavePlan(()), _raise_in_callback(error)
    snapshot_s = time.monotonic() - planned

    def write() -> SaveReport:
        committed = commit(
            backend, step, snapshot, ranks, incremental=incremental, progress=progress
        )
        SNAPSHOT.learn(committed.digests)
        after()
        return _report(backend, step, committed, planned - started, snapshot_s)

    return BACKGROUND.start(write)


def _check_arguments(
    open_backend: Callable[[], Backend], step: int, metadata: Mapping[str, Any] | None
) -> tuple[int, Backend | None, Exception | None]:
    """The step, the backend, and the error in this rank's arguments, if any.

    The error is raised at the first exchange of the ranks: raised here, it would leave the others
    waiting there, and one save behind from then on.
    """
    try:
        number = check_step(step)
        _check_metadata(metadata)
        return number, open_backend(), None
    except Exception as error:
        return 0, None, error


def _check_metadata(metadata: Mapping[str, Any] | None) -> None:
    """Raises ValueError unless reading it back gives the same."""
    try:
        manifest.check_depth(metadata)
        is_unchanged = json.loads(json.dumps(metadata, allow_nan=True)) == metadata
    except (TypeError, ValueError) as error:
        raise ValueError(f"metadata must be what JSON can hold: {error}") from None
    has_nan = is_unchanged is False and "NaN" in json.dumps(metadata)
    if not is_unchanged and not has_nan:
        raise ValueError("metadata must be what JSON can hold: names as text, lists, no tuples")


def check_step(step: int) -> int:
    """Raises ValueError unless it is a whole number of 0 or more."""
    try:
        number = -1 if isinstance(step, bool) else operator.index(step)
    except TypeError:
        number = -1
    if number < 0:
        raise ValueError(f"step={step!r}: it must be a whole number of 0 or more")
    return number


def _raise_in_callback(error: Exception) -> ProgressCallback:
    """A callback that raises the error when the ranks next exchange values: raised earlier, it
    would leave the others waiting.
    """

    def progress(_: SaveProgress) -> None:
        raise error

    return progress


def _report(
    backend: Backend, step: int, committed: Committed, plan_s: float, snapshot_s: float
) -> SaveReport:
    total = committed.progress
    return SaveReport(
        step=step,
        folder=f"{backend.root}/{committed.folder}",
        bytes=total.total,
        written=total.written,
        linked=total.linked,
        plan_s=plan_s,
        snapshot_s=snapshot_s,
        write_s=committed.write_s,
        commit_s=committed.commit_s,
    )
