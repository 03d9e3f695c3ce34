"""The order of the steps of a save.

    rank 0     makes the temporary folder (publication.begin)
    all ranks  write or link their files, and a list of them (_Save.write)
    rank 0     merges the lists into the manifest and renames the folder (publication.publish)
    all ranks  wait until they see the checkpoint (_wait_until_visible)

The ranks communicate through `Ranks` alone, so it works with any store, and nothing here calls a
collective. While they write they exchange their progress, so a rank that dies is missed soon,
however long the others write.
"""

from __future__ import annotations

import time
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Callable

from ..comm import collective
from ..comm.collective import FIRST_PAUSE_S, RankFailed, run_with_beats, run_with_heartbeat
from ..comm.store import RanksMissing, StoreLost
from ..dataclass import frozen
from . import catalog, copies, layout, publication
from .errors import CheckpointError, NotCommitted, as_rank_failed
from .progress import SaveProgress
from .writer import Writer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future

    from ..comm.ranks import Ranks
    from .items import Item
    from .manifest import Manifest
    from .progress import SaveCallback
    from .storage import Storage
    from .writer import WrittenFile

VISIBLE_S = 30.0
# Extra free space for a save: for folders, the manifest, and other programs that write meanwhile.
SPACE_MARGIN = 1.1


@frozen
class Committed:
    folder: str
    progress: SaveProgress


def commit(
    storage: Storage,
    step: int,
    items: Sequence[Item],
    ranks: Ranks,
    *,
    metadata: Mapping[str, object],
    incremental: bool,
    progress: SaveCallback,
) -> Committed:
    """Commits one checkpoint made of every rank's items.

    On return it is whole and durable, and `latest` names it. A failure on any rank is raised on all
    of them (NotCommitted, which names the ranks) and leaves nothing visible.
    """
    save = _Save(storage, step, items, ranks, progress)
    try:
        try:
            folder, parent, is_damaged = save.begin(incremental)
            total = save.write(folder, parent)
            folder = save.publish(folder, metadata)
        except BaseException:
            save.undo()
            raise
    except (RankFailed, RanksMissing, StoreLost) as error:
        failure = as_rank_failed(error)
        raise NotCommitted(step, failure, is_certain=not save.is_publishing) from error
    if is_damaged:
        layout.damaged.discard(storage.root)
    _wait_until_visible(storage, folder, ranks)
    return Committed(folder, total)


class _Save:
    """This rank's steps of one save, and how far it came, which decides what a failure means.

    is_publishing: rank 0 may be making the checkpoint visible.
    """

    def __init__(
        self,
        storage: Storage,
        step: int,
        items: Sequence[Item],
        ranks: Ranks,
        progress: SaveCallback,
    ) -> None:
        self.is_publishing = False
        self._storage = storage
        self._step = step
        self._items = items
        self._ranks = ranks
        self._progress = progress
        # On rank 0: the temporary folder, the checkpoint before this one, and this one's folder.
        self._begun: str | None = None
        self._parent: str | None = None
        self._parent_content: Manifest | None = None
        self._sequence = 0
        self._published: str | None = None
        # What this rank wrote.
        self._part: Manifest | None = None

    def begin(self, incremental: bool) -> tuple[str, str | None, bool]:
        """The temporary folder, the checkpoint whose files may be linked, and whether a rank knows of
        damage: then none may.

        If the checkpoint may not fit, the second copies are removed: a new checkpoint is worth more,
        and the next prune makes them again.
        """
        is_damaged = self._storage.root in layout.damaged
        size = sum(item.bytes for item in self._items)
        reports = self._ranks.exchange("checkpoint/step", [self._step, is_damaged, size])
        steps, are_damaged, sizes = zip(*reports)
        if len(set(steps)) > 1:
            text = ", ".join(f"{number} on rank {rank}" for rank, number in enumerate(steps))
            raise CheckpointError(f"nothing was saved: the ranks save different steps ({text})")

        def make_folder() -> tuple[str, str | None]:
            self._parent, self._parent_content = publication.find_parent(self._storage)
            if self._parent_content:
                self._sequence = self._parent_content.sequence + 1
            if sum(sizes) * SPACE_MARGIN > self._storage.free():
                copies.remove(self._storage, copies.names(self._storage))
            self._begun = self._storage.begin(self._step)
            return self._begun, self._parent if incremental and not any(are_damaged) else None

        folder, parent = _broadcast_slow("checkpoint/open", self._ranks, make_folder)
        return folder, parent, any(are_damaged)

    def write(self, folder: str, parent: str | None) -> SaveProgress:
        """Writes this rank's files into the temporary folder, and a list of them.

        On return all files are durable.
        """
        storage, ranks = self._storage, self._ranks
        collective.run_on_all(
            "checkpoint/enter", ranks, lambda: storage.wait_for(folder, VISIBLE_S)
        )
        # The parent as this rank sees it; None if it was removed meanwhile.
        content = self._parent_content if parent else None
        self._parent_content = None  # it may be large
        if ranks.rank:
            content = catalog.manifest_if_intact(storage, parent)
        total, written = self._run_writer(Writer(storage, folder, parent, content))

        def finish() -> None:
            self._progress(total)
            self._part = publication.part_of(written, ranks.world_size)
            if ranks.rank:
                publication.write_part(storage, folder, self._part, ranks.rank)

        collective.run_on_all("checkpoint/part", ranks, finish)
        return total

    def _run_writer(self, writer: Writer) -> tuple[SaveProgress, list[WrittenFile]]:
        """All ranks' bytes, and this rank's files.

        The ranks exchange their progress at least every LONGEST_PAUSE_S, so a lost rank is missed,
        and a failure on one rank stops all.
        """
        started = time.monotonic()
        total = SaveProgress(0, 0, 0.0)

        def beat(future: Future[list[WrittenFile]]) -> bool:
            nonlocal total

            def report() -> tuple[bool, int, int, int]:
                """Raises what this rank's writing, or its callback, raised."""
                self._progress(total)
                is_over = future.done()
                if is_over:
                    future.result()
                return is_over, writer.count.total, writer.count.written, writer.count.linked

            reports = collective.run_on_all("checkpoint/write", self._ranks, report)
            are_over, *counts = zip(*reports)
            size, written, linked = map(sum, counts)
            seconds = time.monotonic() - started
            total = SaveProgress(size, written + linked, seconds, written, linked)
            return all(are_over)

        future = run_with_beats(lambda: writer.run(self._items), beat, writer.stop)
        return total, future.result()

    def publish(self, folder: str, metadata: Mapping[str, object]) -> str:
        """Returns the checkpoint's name. The step counts as committed once rank 0 has committed it,
        even if another rank or the store is lost before the news arrives.

        Rank 0 first checks that all ranks still respond: it may have been suspended for so long
        that they gave up.
        """
        collective.barrier("checkpoint/ready", self._ranks)
        self.is_publishing = True

        def make_visible() -> str:
            assert self._part is not None
            self._published = publication.publish(
                self._storage,
                folder,
                self._step,
                self._part,
                parent=self._parent,
                sequence=self._sequence,
                metadata=metadata,
            )
            return self._published

        try:
            return str(_broadcast_slow("checkpoint/publish", self._ranks, make_visible))
        except RankFailed:
            self.is_publishing = False  # rank 0 reported that it failed
            raise
        except (RanksMissing, StoreLost) as error:
            committed = self._published or _reported_folder(error)
            if committed is None:
                raise
            warnings.warn(
                f"step {self._step} was committed, but the ranks were lost before all of them "
                f"knew: {error}",
                stacklevel=4,
            )
            return committed

    def undo(self) -> None:
        """Removes the temporary folder, unless it became a checkpoint."""
        if self._begun and not self._published:
            with suppress(OSError):
                self._storage.remove(self._begun)


def _reported_folder(error: RanksMissing | StoreLost) -> str | None:
    """The checkpoint that rank 0 reported in the exchange that failed; None if it did not get so
    far.
    """
    # In the last exchange this is rank 0's result; in those before, whether it has finished.
    report = getattr(error, "payloads", {}).get(0)
    if not isinstance(report, dict) or report["error"] is not None:
        return None
    return str(report["value"])


def _broadcast_slow(name: str, ranks: Ranks, choose: Callable[[], Any]) -> Any:
    """Like collective.broadcast, for what may take longer than a rank may be silent."""
    action = choose if ranks.rank == 0 else lambda: None
    future = run_with_heartbeat(f"{name}/busy", ranks, action)
    return collective.broadcast(name, ranks, future.result)


def _wait_until_visible(storage: Storage, folder: str, ranks: Ranks) -> None:
    """Waits until all ranks see the checkpoint, unless another job has already replaced it.

    A rank that is lost meanwhile is ignored: the checkpoint exists, and the next exchange misses
    the rank too.
    """
    end = time.monotonic() + VISIBLE_S

    def look() -> tuple[bool, bool]:
        try:
            storage.wait_for(folder, FIRST_PAUSE_S)
            is_visible = True
        except TimeoutError:
            is_visible = False
        return is_visible, time.monotonic() > end

    with suppress(RankFailed, RanksMissing, StoreLost):
        while True:
            are_visible, are_over = zip(*collective.run_on_all("checkpoint/see", ranks, look))
            is_replaced = not are_visible[0]
            if is_replaced or all(are_visible) or any(are_over):
                return
