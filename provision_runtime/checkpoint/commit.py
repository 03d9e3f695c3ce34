"""The order of the steps of a save.

    rank 0     makes the temporary folder (Save._begin)
    all ranks  write or link their files, and a list of them (Save._write)
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
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Callable

from ..comm import collective
from ..comm.collective import FIRST_PAUSE_S, RankFailed, run_with_beats, run_with_heartbeat
from ..comm.store import RanksMissing, StoreLost
from ..dataclass import frozen
from . import catalog, copies, layout, publication
from .errors import CheckpointError, NotCommitted, as_rank_failed
from .progress import SaveCallback, SaveProgress
from .writer import Writer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future

    from ..comm.ranks import Ranks
    from .items import Item
    from .manifest import Manifest
    from .storage import Storage

VISIBLE_S = 30.0
# Extra free space for a save: for folders, the manifest, and other programs that write meanwhile.
SPACE_MARGIN = 1.1


@frozen
class SaveReport:
    """A save that was committed.

    Attributes:
        step: The number of the step.
        folder: The checkpoint's path.
        bytes: Bytes of tensors in the checkpoint, over all ranks.
        written: Bytes of them that were written.
        linked: Bytes of them that were linked, because the parent has them.
        seconds: From the first write until all ranks saw the checkpoint.
    """

    step: int
    folder: str
    bytes: int
    written: int
    linked: int
    seconds: float


@dataclass
class Save:
    """This rank's steps of one save, and how far it came, which decides what a failure means.

    items: what this rank writes.
    """

    storage: Storage
    step: int
    items: Sequence[Item]
    ranks: Ranks
    progress: SaveCallback
    metadata: Mapping[str, object] = field(default_factory=dict)
    incremental: bool = True
    # Why this rank has nothing to write.
    problem: Exception | None = None
    # The temporary folder, and the checkpoint before this one.
    _folder: str = ""
    _parent: str | None = None
    # On rank 0: what the parent holds, its number, and this checkpoint's folder.
    _parent_content: Manifest | None = None
    _sequence: int = 0
    _published: str | None = None
    # Rank 0 may be making the checkpoint visible.
    _is_publishing: bool = False

    def commit(self) -> SaveReport:
        """Commits one checkpoint made of every rank's items.

        On return it is whole and durable, and `latest` names it. A failure on any rank is raised on
        all of them (NotCommitted, which names the ranks) and leaves nothing visible.
        """
        started = time.monotonic()
        try:
            try:
                is_damaged = self._begin()
                total, part = self._write()
                collective.run_on_all("checkpoint/part", self.ranks, lambda: self.progress(total))
                folder = self._publish(part)
            except BaseException:
                self._undo()
                raise
        except (RankFailed, RanksMissing, StoreLost) as error:
            failure = as_rank_failed(error)
            raise NotCommitted(self.step, failure, is_certain=not self._is_publishing) from error
        if is_damaged:
            layout.damaged.discard(self.storage.root)
        _wait_until_visible(self.storage, folder, self.ranks)
        path, seconds = f"{self.storage.root}/{folder}", time.monotonic() - started
        return SaveReport(self.step, path, total.total, total.written, total.linked, seconds)

    def _begin(self) -> bool:
        """Makes the temporary folder. Whether a rank knows of damage: then no file is linked.

        If the checkpoint may not fit, the second copies are removed: a new checkpoint is worth more,
        and the next prune makes them again.
        """
        is_damaged = self.storage.root in layout.damaged
        size = sum(item.bytes for item in self.items)

        def report() -> list[int]:
            if self.problem:
                raise self.problem
            return [self.step, is_damaged, size]

        reports = collective.run_on_all("checkpoint/step", self.ranks, report)
        steps, are_damaged, sizes = zip(*reports)
        if len(set(steps)) > 1:
            text = ", ".join(f"{number} on rank {rank}" for rank, number in enumerate(steps))
            raise CheckpointError(f"nothing was saved: the ranks save different steps ({text})")

        def make_folder() -> tuple[str, str | None]:
            self._parent, self._parent_content = publication.find_parent(self.storage)
            if self._parent_content:
                self._sequence = self._parent_content.sequence + 1
            if sum(sizes) * SPACE_MARGIN > self.storage.free():
                copies.remove(self.storage, copies.names(self.storage))
            self._folder = self.storage.begin(self.step)
            return self._folder, self._parent

        self._folder, self._parent = _broadcast_slow("checkpoint/open", self.ranks, make_folder)
        self.incremental = self.incremental and not any(are_damaged)
        return any(are_damaged)

    def _write(self) -> tuple[SaveProgress, Manifest]:
        """Writes this rank's files into the temporary folder, and a list of them, its part. Returns
        all ranks' bytes, and the part; all files are durable then.

        The ranks exchange their progress at least every LONGEST_PAUSE_S, so a lost rank is missed,
        and a failure on one rank stops all.
        """
        storage, rank = self.storage, self.ranks.rank
        # The parent as this rank sees it; None if it was removed meanwhile.
        content, self._parent_content = self._parent_content, None  # it may be large
        if not self.incremental:
            content = None
        elif rank:
            content = catalog.manifest_if_intact(storage, self._parent)
        writer = Writer(storage, self._folder, self._parent, content)

        def write() -> Manifest:
            storage.wait_for(self._folder, VISIBLE_S)
            part = publication.part_of(writer.run(self.items), self.ranks.world_size)
            if rank:
                publication.write_part(storage, self._folder, part, rank)
            return part

        started = time.monotonic()
        total = SaveProgress(0, 0, 0.0)

        def beat(future: Future[Manifest]) -> bool:
            nonlocal total

            def report() -> tuple[bool, int, int, int]:
                """Raises what this rank's writing, or its callback, raised."""
                self.progress(total)
                is_over = future.done()
                if is_over:
                    future.result()
                return is_over, writer.count.total, writer.count.written, writer.count.linked

            reports = collective.run_on_all("checkpoint/write", self.ranks, report)
            are_over, *counts = zip(*reports)
            size, written, linked = map(sum, counts)
            seconds = time.monotonic() - started
            total = SaveProgress(size, written + linked, seconds, written, linked)
            return all(are_over)

        part = run_with_beats(write, beat, writer.stop).result()
        return total, part

    def _publish(self, part: Manifest) -> str:
        """Returns the checkpoint's name. The step counts as committed once rank 0 has committed it,
        even if another rank or the store is lost before the news arrives.

        Rank 0 first checks that all ranks still respond: it may have been suspended for so long
        that they gave up.
        """
        collective.barrier("checkpoint/ready", self.ranks)
        self._is_publishing = True

        def make_visible() -> str:
            first = replace(
                part,
                step=self.step,
                parent=self._parent,
                sequence=self._sequence,
                metadata=dict(self.metadata),
            )
            self._published = publication.publish(self.storage, self._folder, first)
            return self._published

        try:
            return str(_broadcast_slow("checkpoint/publish", self.ranks, make_visible))
        except RankFailed:
            self._is_publishing = False  # rank 0 reported that it failed
            raise
        except (RanksMissing, StoreLost) as error:
            committed = self._published or _reported_folder(error)
            if committed is None:
                raise
            warnings.warn(
                f"step {self.step} was committed, but the ranks were lost before all of them "
                f"knew: {error}",
                stacklevel=4,
            )
            return committed

    def _undo(self) -> None:
        """Removes the temporary folder, unless it became a checkpoint."""
        if self._folder and self.ranks.rank == 0 and not self._published:
            with suppress(OSError):
                self.storage.remove(self._folder)


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
