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

import errno
import time
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Callable

from ..comm import collective
from ..comm.collective import FIRST_PAUSE_S, RankFailed, run_with_beats, run_with_heartbeat
from ..comm.store import RanksMissing, StoreLost
from ..dataclass import frozen
from . import catalog, copies, corrupt_files, publication
from .errors import CheckpointError, NotCommitted, as_rank_failed
from .progress import SaveProgress
from .writer import Writer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future

    from ..comm.ranks import Ranks
    from .backends import Backend
    from .items import Item
    from .manifest import Manifest
    from .progress import SaveCallback
    from .writer import WrittenFile

VISIBLE_S = 30.0
# Extra free space that a save requires: for folders, archives around the tensors, the manifest,
# and other programs that write meanwhile.
SPACE_MARGIN = 1.1


@frozen
class Committed:
    folder: str
    progress: SaveProgress
    write_s: float
    commit_s: float


def commit(
    backend: Backend,
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
    started = time.monotonic()
    save = _Save(backend, step, items, ranks, progress)
    try:
        try:
            folder, parent = save.begin(incremental)
            total, rewritten = save.write(folder, parent)
            written = time.monotonic()
            folder = save.publish(folder, metadata)
        except BaseException:
            save.undo()
            raise
    except (RankFailed, RanksMissing, StoreLost) as error:
        failure = as_rank_failed(error)
        raise NotCommitted(step, failure, is_certain=not save.is_publishing) from error
    corrupt_files.forget(backend.root, rewritten)
    _wait_until_visible(backend, folder, ranks)
    commit_s = time.monotonic() - written
    return Committed(folder, total, written - started, commit_s)


class _Save:
    """This rank's steps of one save, and how far it came, which decides what a failure means.

    is_publishing: rank 0 may be making the checkpoint visible.
    """

    def __init__(
        self,
        backend: Backend,
        step: int,
        items: Sequence[Item],
        ranks: Ranks,
        progress: SaveCallback,
    ) -> None:
        self.is_publishing = False
        self._backend = backend
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

    def begin(self, incremental: bool) -> tuple[str, str | None]:
        """The temporary folder, and the checkpoint whose files may be linked."""
        steps = self._ranks.exchange("checkpoint/step", self._step)
        if len(set(steps)) > 1:
            text = ", ".join(f"{number} on rank {rank}" for rank, number in enumerate(steps))
            raise CheckpointError(f"nothing was saved: the ranks save different steps ({text})")

        def make_folder() -> tuple[str, str | None]:
            self._parent, self._parent_content = publication.find_parent(self._backend)
            if self._parent_content:
                self._sequence = self._parent_content.sequence + 1
            self._begun = self._backend.begin(self._step)
            return self._begun, self._parent if incremental else None

        folder, parent = _broadcast_slow("checkpoint/open", self._ranks, make_folder)
        return folder, parent

    def write(self, folder: str, parent: str | None) -> tuple[SaveProgress, set[str]]:
        """Writes this rank's files into the temporary folder, and a list of them.

        On return all files are durable. Files that a rank knew to be corrupt are not linked; returns
        those of which this save has the content, and so wrote it again.
        """
        backend, ranks = self._backend, self._ranks

        def enter() -> list[str]:
            backend.wait_for(folder, VISIBLE_S)
            return corrupt_files.names_in(backend.root)

        corrupt: set[str] = set()
        corrupt.update(*collective.run_on_all("checkpoint/enter", ranks, enter))
        corrupt_files.add(backend.root, *corrupt)
        # The parent as this rank sees it; None if it was removed meanwhile.
        content = self._parent_content if parent else None
        self._parent_content = None  # it may be large
        if ranks.rank:
            content = catalog.manifest_if_intact(backend, parent)
        _ensure_space(backend, self._items, ranks, may_link=parent is not None)
        total, written = self._run_writer(Writer(backend, folder, parent, content))

        def finish() -> list[str]:
            self._progress(total)
            self._part = publication.part_of(written, ranks.world_size)
            if ranks.rank:
                publication.write_part(backend, folder, self._part, ranks.rank)
            return sorted(corrupt.intersection(entry.name for entry, _ in written))

        rewritten: set[str] = set()
        rewritten.update(*collective.run_on_all("checkpoint/part", ranks, finish))
        return total, rewritten

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
                self._backend,
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
                self._backend.remove(self._begun)


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


def _ensure_space(backend: Backend, items: Sequence[Item], ranks: Ranks, may_link: bool) -> None:
    """Removes the second copies if the checkpoint may not fit: a new checkpoint is worth more, and
    the next prune makes them again.

    Raises RankFailed (ENOSPC) on every rank if it certainly does not fit. may_link: files of the
    parent may be linked, so how much must be written is not known.
    """
    rank_bytes = sum(item.bytes for item in items)
    size = sum(collective.run_on_all("checkpoint/whole", ranks, lambda: rank_bytes))

    def is_lacking() -> bool:
        free = backend.free()
        return free is not None and size * SPACE_MARGIN > free

    def make_space() -> None:
        if is_lacking():
            copies.remove_all(backend)
            if is_lacking() and not may_link:
                text = (
                    f"the save needs {size} bytes and a tenth more as a margin; "
                    f"{backend.free()} are free"
                )
                raise OSError(errno.ENOSPC, text, backend.root)

    _broadcast_slow("checkpoint/space", ranks, make_space)


def _wait_until_visible(backend: Backend, folder: str, ranks: Ranks) -> None:
    """Waits until all ranks see the checkpoint, unless another job has already replaced it.

    A rank that is lost meanwhile is ignored: the checkpoint exists, and the next exchange misses
    the rank too.
    """
    end = time.monotonic() + VISIBLE_S

    def look() -> tuple[bool, bool]:
        try:
            backend.wait_for(folder, FIRST_PAUSE_S)
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
