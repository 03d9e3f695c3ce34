"""Between the beginning of a save and its commit: every rank's files come into the temporary folder, and a list of them.

The ranks meet again and again meanwhile: one that dies is missed soon, however long the others' writing takes.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Callable

from ..comm import collective
from ..comm.heartbeat import run_with_beats
from . import catalog, corrupt_files, manifest, space
from .parent_index import Known
from .progress import Doing
from .writer import Part, Writer

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ..comm.ranks import Ranks
    from .backends import Backend
    from .items import Place, Plan

VISIBLE_S = 30.0
Progress = Callable[[Doing], None]


@dataclass(frozen=True)
class Filled:
    """anew: names of files that a rank knew to be damaged elsewhere, and that were written again here. digests: of this rank's pieces."""

    done: Doing
    anew: frozenset[str]
    digests: dict[Place, str]


def fill(
    backend: Backend, opened: dict[str, Any], plan: Plan, ranks: Ranks, progress: Progress
) -> Filled:
    """opened: what rank 0 made and found, as commit.py has it. All files are durable, and none of them is one that any rank knows to be
    damaged."""
    folder = opened["folder"]
    collective.run_on_all("checkpoint/enter", ranks, lambda: backend.wait_for(folder, VISIBLE_S))
    writer = Writer(backend, folder, _known(backend, opened), plan.digests)
    space.require(backend, writer, plan.items, ranks)
    done, part, damaged = _write(writer, lambda: writer.run(plan.items), ranks, progress)
    corrupt_files.add(backend.root, *damaged)
    linked = _linked(backend, folder, writer, damaged, ranks) if damaged else frozenset()
    if linked:
        first = part
        done, part, _ = _write(writer, lambda: writer.write_anew(first, linked), ranks, progress)

    def finish() -> list[str]:
        progress(done)
        backend.write(folder, part_name(ranks.rank), [memoryview(_part_bytes(plan, part))])
        backend.flush(folder)
        return sorted(damaged.intersection(entry.name for entry in part.files))

    anew = collective.run_on_all("checkpoint/part", ranks, finish)
    digests = {piece.place: record.sha256 for piece, record in part.records}
    return Filled(done, frozenset(name for names in anew for name in names), digests)


def _linked(
    backend: Backend, folder: str, writer: Writer, damaged: frozenset[str], ranks: Ranks
) -> frozenset[str]:
    """Which of these files came by link, on whatever rank, before one of them was seen to be damaged. They are taken out of the folder."""
    said = collective.run_on_all("checkpoint/linked", ranks, lambda: writer.linked(damaged))
    linked = frozenset(name for names in said for name in names)

    def take_out() -> None:
        for name in linked:
            with suppress(FileNotFoundError):  # it was referred to
                backend.discard(folder, name)

    if linked:
        collective.broadcast("checkpoint/unlink", ranks, take_out)
    return linked


def _known(backend: Backend, opened: dict[str, Any]) -> Known:
    """The parent, as this rank sees it; nothing where it was removed meanwhile."""
    parent = opened["parent"] if opened["incremental"] else None
    return Known(parent, catalog.manifest_if_whole(backend, parent) if parent else None)


def _write(
    writer: Writer, work: Callable[[], Part], ranks: Ranks, progress: Progress
) -> tuple[Doing, Part, frozenset[str]]:
    """This rank's part, all ranks' bytes, and the parent's files that any of them knows to be damaged.

    The ranks meet at least every LONGEST_PAUSE_S: one that is gone is missed, and what fails on one stops all.
    """
    started = time.monotonic()
    doing = Doing(0, 0, 0, 0.0)
    damaged: frozenset[str] = frozenset()

    def meet(job: Future[Part]) -> bool:
        nonlocal doing, damaged
        said = collective.run_on_all(
            "checkpoint/write", ranks, partial(_beat, writer, job, doing, progress)
        )
        total, written, linked = (sum(rank[place] for rank in said) for place in (1, 2, 3))
        doing = Doing(total, written, linked, time.monotonic() - started)
        damaged = frozenset(name for rank in said for name in rank[4])
        return all(rank[0] for rank in said)

    part = run_with_beats(work, meet, writer.stop).result()
    return doing, part, damaged


def _beat(writer: Writer, job: Future[Part], doing: Doing, progress: Progress) -> list[Any]:
    """Whether this rank is done, its bytes, and which files it knows to be damaged; raises what its writing, or the callback, raised."""
    progress(doing)
    is_done = job.done()
    if is_done:
        job.result()
    own = writer.progress
    return [is_done, own.total, own.written, own.linked, writer.suspected()]


def part_name(rank: int) -> str:
    return f".part-{rank:05d}.json"


def _part_bytes(plan: Plan, part: Part) -> bytes:
    records = [
        [item.name, item.dtype, list(item.shape), manifest.record_as_json(record)]
        for item, record in part.records
    ]
    files = [manifest.file_as_json(entry) for entry in part.files]
    return json.dumps({"files": files, "records": records, "paths": plan.paths}).encode()
