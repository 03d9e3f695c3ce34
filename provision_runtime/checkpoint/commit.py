"""The order of the steps of a save.

    rank 0     makes the temporary folder (_begin)
    all ranks  write or link their files, and a list of them (_write_parts)
    rank 0     merges the lists into the manifest and renames the folder (_publish)
    all ranks  wait until they see the checkpoint (_wait_until_visible)

The ranks communicate through `Ranks` alone, so it works with any store, and nothing here calls a
collective. While they write they exchange their progress, so a rank that dies is missed soon,
however long the others write.
"""

from __future__ import annotations

import errno
import hashlib
import json
import sys
import time
import warnings
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Callable

from ..comm import collective
from ..comm.collective import FIRST_PAUSE_S, RankFailed, run_with_beats, run_with_heartbeat
from ..comm.store import RanksMissing, StoreLost
from . import catalog, copies, corrupt_files, dcp, layout, manifest
from .errors import CheckpointError, NotCommitted, as_rank_failed
from .hashes import xxh128_of
from .items import OBJECT
from .writer import ParentIndex, Writer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from ..comm.ranks import Ranks
    from .backends import Backend
    from .items import Item, Place, SavePlan
    from .manifest import Manifest
    from .writer import RankPart

VISIBLE_S = 30.0
# Extra free space that a save requires: for folders, archives around the tensors, the manifest,
# and other programs that write meanwhile.
SPACE_MARGIN = 1.1


@dataclass(frozen=True)
class SaveProgress:
    """How far a save is, over all ranks.

    Attributes:
        total: Bytes of tensors that the checkpoint will have.
        written: Bytes of them that are written.
        linked: Bytes of them that are linked, because the parent has them.
        seconds: Since this rank began to write.
    """

    total: int
    written: int
    linked: int
    seconds: float

    @property
    def rate(self) -> float:
        """Bytes per second so far: (written + linked) / seconds."""
        return (self.written + self.linked) / self.seconds if self.seconds else 0.0


ProgressCallback = Callable[[SaveProgress], None]


@dataclass(frozen=True)
class Committed:
    """digests: of this rank's pieces, as in the manifest."""

    folder: str
    progress: SaveProgress
    digests: dict[Place, str]
    write_s: float
    commit_s: float


@dataclass(frozen=True)
class _Opened:
    """What rank 0 found and made, which all ranks must know. sequence: of this commit. parent: the
    checkpoint before it."""

    folder: str
    parent: str | None
    sequence: int
    incremental: bool


@dataclass
class _Stage:
    """How far a save came, which decides what a failure means.

    begun, published: folders, on rank 0.
    """

    begun: list[str] = field(default_factory=list)
    published: list[str] = field(default_factory=list)
    is_publishing: bool = False


@dataclass(frozen=True)
class _WrittenParts:
    """rewritten: files that are corrupt in other checkpoints, and that this save wrote again.

    digests: of this rank's pieces.
    """

    progress: SaveProgress
    rewritten: frozenset[str]
    digests: dict[Place, str]


def commit(
    backend: Backend,
    step: int,
    plan: SavePlan,
    ranks: Ranks,
    *,
    incremental: bool,
    progress: ProgressCallback,
) -> Committed:
    """Commits one checkpoint made of every rank's plan.

    On return it is whole and durable, and `latest` names it. A failure on any rank is raised on all
    of them (NotCommitted, which names the ranks) and leaves nothing visible.
    """
    started = time.monotonic()
    stage = _Stage()
    try:
        _check_same_step(step, ranks)
        try:
            opened = _Opened(
                **_broadcast_slow(
                    "checkpoint/open",
                    ranks,
                    lambda: asdict(_begin(backend, step, incremental, stage)),
                )
            )
            parts = _write_parts(backend, opened, plan, ranks, progress)
            written = time.monotonic()
            metadata = dict(plan.metadata)
            folder = _publish_together(backend, opened, step, ranks, stage, metadata)
        except BaseException:
            if not stage.published:
                for name in stage.begun:
                    with suppress(OSError):
                        backend.remove(name)
            raise
    except (RankFailed, RanksMissing, StoreLost) as error:
        failure = as_rank_failed(error)
        raise NotCommitted(step, failure, is_certain=not stage.is_publishing) from error
    corrupt_files.forget(backend.root, parts.rewritten)
    _wait_until_visible(backend, folder, ranks)
    commit_s = time.monotonic() - written
    return Committed(folder, parts.progress, parts.digests, written - started, commit_s)


def _check_same_step(step: int, ranks: Ranks) -> None:
    steps = ranks.exchange("checkpoint/step", step)
    if len(set(steps)) > 1:
        text = ", ".join(f"{number} on rank {rank}" for rank, number in enumerate(steps))
        raise CheckpointError(f"nothing was saved: the ranks save different steps ({text})")


def _broadcast_slow(name: str, ranks: Ranks, choose: Callable[[], Any]) -> Any:
    """Like collective.broadcast, for what may take longer than a rank may be silent."""
    action = choose if ranks.rank == 0 else lambda: None
    future = run_with_heartbeat(f"{name}/busy", ranks, action)
    return collective.broadcast(name, ranks, future.result)


def _begin(backend: Backend, step: int, incremental: bool, stage: _Stage) -> _Opened:
    """Runs on rank 0 only. Makes the temporary folder."""
    with suppress(OSError):
        catalog.remove_leftovers(backend)
    parent = catalog.latest(backend)
    content = None
    if parent:
        content = catalog.manifest_if_intact(backend, parent)
    if parent and content is None:
        # It is damaged: continue from the last commit that can be read.
        parent = next(iter(catalog.intact_newest_first(backend)), None)
        if parent:
            content = catalog.manifest_if_intact(backend, parent)
    sequence = 0
    if content is None:
        parent = None
    else:
        sequence = content.sequence + 1
    folder = backend.begin(step, parent if incremental else None)
    stage.begun.append(folder)
    return _Opened(folder, parent, sequence, incremental)


# Every rank's files


def _write_parts(
    backend: Backend,
    opened: _Opened,
    plan: SavePlan,
    ranks: Ranks,
    progress: ProgressCallback,
) -> _WrittenParts:
    """Writes this rank's files into the temporary folder, and a list of them.

    On return all files are durable, and no rank knows any of them to be corrupt.
    """
    folder = opened.folder
    collective.run_on_all("checkpoint/enter", ranks, lambda: backend.wait_for(folder, VISIBLE_S))
    # The parent as this rank sees it; an empty index if it was removed meanwhile.
    parent = opened.parent if opened.incremental else None
    content = catalog.manifest_if_intact(backend, parent) if parent else None
    writer = Writer(backend, folder, ParentIndex(parent, content), plan.digests)
    _check_space(backend, writer, plan.items, ranks)
    total, part, corrupt = _run_writer(writer, lambda: writer.run(plan.items), ranks, progress)
    corrupt_files.add(backend.root, *corrupt)
    linked: frozenset[str] = frozenset()
    if corrupt:
        linked = _unlink_corrupt(backend, folder, writer, corrupt, ranks)
    if linked:
        first_part = part
        total, part, _ = _run_writer(
            writer, lambda: writer.rewrite(first_part, linked), ranks, progress
        )

    def finish() -> list[str]:
        progress(total)
        backend.write(folder, _part_name(ranks.rank), [memoryview(_part_bytes(plan, part))])
        backend.flush(folder)
        return sorted(corrupt.intersection(entry.name for entry in part.files))

    rewritten: set[str] = set()
    for names in collective.run_on_all("checkpoint/part", ranks, finish):
        rewritten.update(names)
    digests = {piece.place: record.sha256 for piece, record in part.records}
    return _WrittenParts(total, frozenset(rewritten), digests)


def _check_space(backend: Backend, writer: Writer, items: Sequence[Item], ranks: Ranks) -> None:
    """Raises RankFailed (ENOSPC) on every rank if the checkpoint does not fit.

    Assumes first that the parent has nothing to link. Only if that does not fit, hashes every piece
    to learn what must be written. If that does not fit either, second copies give way: a new
    checkpoint is worth more, and the next prune makes them again.
    """

    def measure_free() -> tuple[list[int | None], int | None]:
        by_rank = collective.run_on_all("checkpoint/free", ranks, backend.free)
        return by_rank, min((free for free in by_rank if free is not None), default=None)

    free_by_rank, least = measure_free()
    if least is None:
        return
    own_bytes = sum(item.bytes for item in items)
    all_bytes = sum(collective.run_on_all("checkpoint/whole", ranks, lambda: own_bytes))
    if all_bytes * SPACE_MARGIN <= least:
        return
    measured = run_with_heartbeat("checkpoint/measure", ranks, lambda: writer.measure(items))
    needed = sum(collective.run_on_all("checkpoint/changed", ranks, measured.result))
    if needed * SPACE_MARGIN <= least:
        return
    collective.broadcast("checkpoint/copies", ranks, lambda: copies.remove_all(backend))
    free_by_rank, least = measure_free()
    if least is None or needed * SPACE_MARGIN <= least:
        return

    def refuse() -> None:
        """Raises on the ranks that see too little space."""
        free = free_by_rank[ranks.rank]
        if free is not None and needed * SPACE_MARGIN > free:
            text = f"the save needs {needed} bytes and a tenth more as a margin; {free} are free"
            raise OSError(errno.ENOSPC, text, backend.root)

    collective.run_on_all("checkpoint/space", ranks, refuse)


def _run_writer(
    writer: Writer, action: Callable[[], RankPart], ranks: Ranks, progress: ProgressCallback
) -> tuple[SaveProgress, RankPart, frozenset[str]]:
    """All ranks' bytes, this rank's part, and the parent's files that any rank knows to be corrupt.

    The ranks exchange their progress at least every LONGEST_PAUSE_S, so a lost rank is missed, and
    a failure on one rank stops all.
    """
    started = time.monotonic()
    total = SaveProgress(0, 0, 0, 0.0)
    corrupt: set[str] = set()

    def beat(future: Future[RankPart]) -> bool:
        nonlocal total

        def report() -> list[Any]:
            """Raises what this rank's writing, or its callback, raised."""
            progress(total)
            is_over = future.done()
            if is_over:
                future.result()
            count = writer.count
            bytes_of_rank = [count.total, count.written, count.linked]
            return [is_over, *bytes_of_rank, writer.corrupt_parent_files()]

        answers = collective.run_on_all("checkpoint/write", ranks, report)
        total = SaveProgress(
            total=sum(answer[1] for answer in answers),
            written=sum(answer[2] for answer in answers),
            linked=sum(answer[3] for answer in answers),
            seconds=time.monotonic() - started,
        )
        corrupt.clear()
        for answer in answers:
            corrupt.update(answer[4])
        return all(answer[0] for answer in answers)

    part = run_with_beats(action, beat, writer.stop).result()
    return total, part, frozenset(corrupt)


def _unlink_corrupt(
    backend: Backend, folder: str, writer: Writer, corrupt: frozenset[str], ranks: Ranks
) -> frozenset[str]:
    """Removes from the folder the corrupt files that a rank linked before it knew; returns them."""
    linked: set[str] = set()
    for names in collective.run_on_all(
        "checkpoint/linked", ranks, lambda: writer.linked_files(corrupt)
    ):
        linked.update(names)

    def unlink() -> None:
        for name in linked:
            with suppress(FileNotFoundError):  # the store refers to files instead of linking them
                backend.discard(folder, name)

    if linked:
        collective.broadcast("checkpoint/unlink", ranks, unlink)
    return frozenset(linked)


def _part_name(rank: int) -> str:
    return f".part-{rank:05d}.json"


def _part_bytes(plan: SavePlan, part: RankPart) -> bytes:
    records = []
    for item, record in part.records:
        fields = manifest.record_as_json(record)
        records.append([item.name, item.dtype, list(item.shape), fields])
    files = [manifest.file_as_json(entry) for entry in part.files]
    return json.dumps({"files": files, "records": records, "paths": plan.paths}).encode()


# Publishing


def _publish_together(
    backend: Backend,
    opened: _Opened,
    step: int,
    ranks: Ranks,
    stage: _Stage,
    metadata: dict[str, Any],
) -> str:
    """Returns the folder's name. The step counts as committed once rank 0 has committed it, even if
    another rank or the store is lost before the news arrives.

    Rank 0 first checks that all ranks still answer: it may have been suspended for so long that
    they gave up.
    """
    collective.barrier("checkpoint/ready", ranks)
    stage.is_publishing = True

    def publish() -> str:
        folder = _publish(backend, opened, step, ranks.world_size, metadata)
        stage.published.append(folder)
        return folder

    try:
        folder: str = _broadcast_slow("checkpoint/publish", ranks, publish)
    except RankFailed:
        stage.is_publishing = False  # rank 0 reported that it failed
        raise
    except (RanksMissing, StoreLost) as error:
        published = list(stage.published)
        # In the last exchange this is rank 0's result; in those before, whether it has finished.
        answer = getattr(error, "payloads", {}).get(0)
        if not published and isinstance(answer, dict) and answer["error"] is None:
            published.append(answer["value"])
        if not published:
            raise
        folder = published[0]
        warnings.warn(
            f"step {step} was committed, but the ranks were lost before all of them knew: {error}",
            stacklevel=4,
        )
    return folder


def _publish(
    backend: Backend,
    opened: _Opened,
    step: int,
    world_size: int,
    metadata: dict[str, Any],
) -> str:
    """Runs on rank 0 only, when all ranks' files are durable."""
    folder = opened.folder
    parts = [json.loads(backend.read(folder, _part_name(rank))) for rank in range(world_size)]
    for rank in range(world_size):
        backend.discard(folder, _part_name(rank))
    content = replace(_merge(parts, step, opened), metadata=metadata)
    paths: dict[str, tuple[Any, ...]] = {}
    for part in parts:
        for name, path in part["paths"].items():
            paths[name] = tuple(path)
    if paths:
        content = _add_dcp_metadata(backend, folder, content, paths)
    final = backend.commit(folder, step, manifest.dumps(content))
    with suppress(OSError):  # the next save of the step, or prune, tries again
        _remove_older_generations(backend, final)
    return final


def _add_dcp_metadata(
    backend: Backend, folder: str, content: Manifest, paths: dict[str, tuple[Any, ...]]
) -> Manifest:
    pickled = dcp.metadata_bytes(content, paths, backend.address)
    if pickled is None:
        return content
    backend.write(folder, dcp.NAME, [memoryview(pickled)])
    sha256 = hashlib.sha256(pickled).hexdigest()
    entry = manifest.FileEntry(dcp.NAME, len(pickled), sha256, xxh128=xxh128_of([pickled]))
    return replace(content, files=(*content.files, entry))


def _remove_older_generations(backend: Backend, folder: str) -> None:
    newest = layout.parse(folder)
    if newest is None:
        return
    older = []
    linked = backend.linked()
    protected = {*linked, *linked.values()}
    for name in catalog.committed(backend):
        is_older = name.step == newest.step and name.generation < newest.generation
        if is_older and str(name) not in protected:
            older.append(str(name))
    if older:
        backend.remove(*older)


def _merge(parts: list[dict[str, Any]], step: int, opened: _Opened) -> Manifest:
    """The manifest. Raises CheckpointError if the boxes of a tensor do not make up the whole."""
    entries = []
    boxes: dict[str, list[manifest.Record]] = {}
    kinds: dict[str, tuple[str, tuple[int, ...]]] = {}
    objects: dict[str, manifest.Record] = {}
    for part in parts:
        entries += [manifest.FileEntry(**entry) for entry in part["files"]]
        for name, dtype, shape, fields in part["records"]:
            record = manifest.record_from_json(fields)
            if dtype == OBJECT:
                objects[name] = record
            else:
                kinds.setdefault(name, (dtype, tuple(shape)))
                boxes.setdefault(name, []).append(record)
    tensors = {}
    for name in sorted(boxes):
        dtype, shape = kinds[name]
        problem = manifest.coverage_problem(shape, boxes[name])
        if problem is not None:
            raise CheckpointError(f"{name}: {problem}")
        records = sorted(boxes[name], key=lambda record: record.offsets)
        tensors[name] = manifest.Tensor(dtype, shape, tuple(records))
    files = manifest.unique_by_name(entries)
    return manifest.Manifest(
        step=step,
        world_size=len(parts),
        files=tuple(files[name] for name in sorted(files)),
        tensors=tensors,
        objects=dict(sorted(objects.items())),
        sequence=opened.sequence,
        parent=opened.parent,
        torch=str(getattr(sys.modules.get("torch"), "__version__", "")),
    )


def _wait_until_visible(backend: Backend, folder: str, ranks: Ranks) -> None:
    """Waits until all ranks see the checkpoint, unless another job has already replaced it.

    A rank that is lost meanwhile is ignored: the checkpoint exists, and the next exchange misses
    the rank too.
    """
    end = time.monotonic() + VISIBLE_S

    def look() -> list[bool]:
        try:
            backend.wait_for(folder, FIRST_PAUSE_S)
            is_visible = True
        except TimeoutError:
            is_visible = False
        return [is_visible, time.monotonic() > end]

    with suppress(RankFailed, RanksMissing, StoreLost):
        while True:
            answers = collective.run_on_all("checkpoint/see", ranks, look)
            is_replaced = not answers[0][0]
            all_see_it = all(is_visible for is_visible, _ in answers)
            any_too_late = any(is_late for _, is_late in answers)
            if is_replaced or all_see_it or any_too_late:
                return
