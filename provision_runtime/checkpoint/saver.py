"""Saving a state dict, now or in the background."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Callable

from ..dataclass import frozen
from . import layout, manifest, streams
from .async_save import BackgroundSave, HostSnapshot
from .commit import commit
from .plan import plan_save
from .progress import line_printer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..comm.ranks import Ranks
    from .backends import Backend
    from .progress import SaveCallback, SaveProgress


@frozen
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


def prepare(
    state_dict: Mapping[str, object],
    open_backend: Callable[[], Backend],
    step: int,
    ranks: Ranks,
    *,
    copies: bool,
    metadata: Mapping[str, object] | None = None,
    incremental: bool = True,
    progress: SaveCallback | None = None,
) -> Callable[[], SaveReport]:
    """Waits for a save in the background, plans this one, and copies the state to host memory if
    `copies`. Returns what writes it, which may run in another thread then.
    """
    BACKGROUND.finish()
    started = time.monotonic()
    backend, problem = None, None
    try:
        step = layout.check_step(step)
        manifest.check_metadata(metadata)
        backend = open_backend()
    except Exception as error:
        # It is raised at the first exchange of the ranks: raised here, it would leave the others
        # waiting there, and one save behind from then on.
        problem = error
    items = plan_save(state_dict, ranks, problem)
    assert backend is not None
    planned = time.monotonic()
    report_progress = progress or line_printer(f"saving step {step}", ranks)
    try:
        tensors = (item.data for item in items if not item.is_object)
        streams.wait_for(streams.devices_of(tensors))
        if copies:
            items = SNAPSHOT.take(items)
    except (MemoryError, RuntimeError) as error:
        items, report_progress = [], _raise_in_callback(error)
    copied = time.monotonic()

    def write() -> SaveReport:
        committed = commit(
            backend,
            step,
            items,
            ranks,
            metadata=metadata or {},
            incremental=incremental,
            progress=report_progress,
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


def _raise_in_callback(error: Exception) -> SaveCallback:
    """A callback that raises the error when the ranks next exchange values: raised earlier, it
    would leave the others waiting.
    """

    def progress(_: SaveProgress) -> None:
        raise error

    return progress
