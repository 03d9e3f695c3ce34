"""The order of the steps of a save: all ranks write aside, one of them commits, all learn of it, or of who failed.

The ranks meet through `Ranks` alone, so it serves any store, and nothing here calls a collective. What they write is filling.py's.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Callable

from ..comm import collective
from ..comm.heartbeat import FIRST_PAUSE_S, run_with_heartbeat
from ..comm.store import RanksMissing, StoreLost
from . import catalog, corrupt_files, covering, dcp, layout, manifest
from .hashes import xxh128_of
from .items import OBJECT
from .progress import Committed, Doing, NotCommitted, failure_of
from .staging import VISIBLE_S, fill, part_name

if TYPE_CHECKING:
    from ..comm.ranks import Ranks
    from .backends import Backend
    from .items import Plan


def commit(
    backend: Backend,
    step: int,
    plan: Plan,
    ranks: Ranks,
    *,
    incremental: bool,
    progress: Callable[[Doing], None],
) -> Committed:
    """Commit one checkpoint made of every rank's plan.

    After return it is whole and durable, and `latest` names it. A failure on any rank is raised on all of them (NotCommitted, which
    names the ranks) and leaves nothing visible.
    """
    started = time.monotonic()
    state = _State()
    try:
        _agree_on_step(step, ranks)
        try:
            opened = _decide_slowly(
                "checkpoint/open", ranks, lambda: _open(backend, step, incremental, state.begun)
            )
            filled = fill(backend, opened, plan, ranks, progress)
            written = time.monotonic()
            folder = _publish_together(backend, opened, step, ranks, state)
        except BaseException:
            for name in state.begun if not state.published else ():
                with suppress(OSError):
                    backend.remove(name)
            raise
    except (collective.RankFailed, RanksMissing, StoreLost) as error:
        raise NotCommitted(step, failure_of(error), is_certain=not state.publishing) from error
    corrupt_files.clear(backend.root, filled.anew)
    _see(backend, folder, ranks)
    return Committed(
        folder, filled.done, filled.digests, written - started, time.monotonic() - written
    )


@dataclass
class _State:
    """How far a save came, for what is said of it where it fails. begun, published: folders, on rank 0."""

    begun: list[str] = field(default_factory=list)
    published: list[str] = field(default_factory=list)
    publishing: bool = False


def _agree_on_step(step: int, ranks: Ranks) -> None:
    said = ranks.exchange("checkpoint/step", step)
    if len(set(said)) > 1:
        told = ", ".join(f"{number} on rank {rank}" for rank, number in enumerate(said))
        raise manifest.CheckpointError(
            f"nothing was saved: the ranks save different steps ({told})"
        )


def _decide_slowly(name: str, ranks: Ranks, choose: Callable[[], Any]) -> Any:
    """As collective.broadcast, of what may take longer than a rank may be silent."""
    chosen = run_with_heartbeat(f"{name}/busy", ranks, choose if ranks.rank == 0 else lambda: None)
    return collective.broadcast(name, ranks, chosen.result)


def _open(backend: Backend, step: int, incremental: bool, begun: list[str]) -> dict[str, Any]:
    with suppress(OSError):
        catalog.clear_leftovers(backend)
    parent = catalog.latest(backend)
    known = catalog.manifest_if_whole(backend, parent) if parent else None
    if (
        parent and known is None
    ):  # damaged: the order of commits goes on from those that can be read
        parent = next(iter(catalog.by_age(backend)), None)
        known = catalog.manifest_if_whole(backend, parent) if parent else None
    begun.append(backend.begin(step, parent if known and incremental else None))
    return {
        "folder": begun[0],
        "parent": parent if known else None,
        "sequence": known.sequence + 1 if known else 0,
        "incremental": incremental,
    }


def _publish_together(
    backend: Backend, opened: dict[str, Any], step: int, ranks: Ranks, state: _State
) -> str:
    """The folder's name. What rank 0 did counts, also where another rank, or the store, is missed while it is told.

    Rank 0 first asks whether all are still there: it may have been stopped for so long that they gave up.
    """
    collective.barrier("checkpoint/ready", ranks)
    state.publishing = True

    def publish() -> str:
        state.published.append(_publish(backend, opened, step, ranks.world_size))
        return state.published[0]

    try:
        folder: str = _decide_slowly("checkpoint/publish", ranks, publish)
    except collective.RankFailed:
        state.publishing = False  # rank 0 said that it could not
        raise
    except (RanksMissing, StoreLost) as error:
        said = getattr(error, "payloads", {}).get(
            0
        )  # at the last of the meetings; before it, whether rank 0 is done
        known = state.published or (
            [said["value"]] if isinstance(said, dict) and said["error"] is None else []
        )
        if not known:
            raise
        folder = known[0]
        warnings.warn(
            f"step {step} was committed, and a rank was missed while it was told: {error}",
            stacklevel=4,
        )
    return folder


def _see(backend: Backend, folder: str, ranks: Ranks) -> None:
    """Wait until all ranks see what is committed, unless another job has replaced it already. A rank that is missed here, the next
    meeting misses too: the checkpoint is there."""
    end = time.monotonic() + VISIBLE_S
    with suppress(collective.RankFailed, RanksMissing, StoreLost):
        while True:
            seen = collective.run_on_all(
                "checkpoint/see",
                ranks,
                lambda: [_is_there(backend, folder), time.monotonic() > end],
            )
            if (
                not seen[0][0]
                or all(is_there for is_there, _ in seen)
                or any(late for _, late in seen)
            ):
                return


def _is_there(backend: Backend, folder: str) -> bool:
    try:
        backend.wait_for(folder, FIRST_PAUSE_S)
    except TimeoutError:
        return False
    return True


def _publish(backend: Backend, opened: dict[str, Any], step: int, world_size: int) -> str:
    """Rank 0 alone, when all ranks' files are durable."""
    folder = opened["folder"]
    parts = [json.loads(backend.read(folder, part_name(rank))) for rank in range(world_size)]
    for rank in range(world_size):
        backend.discard(folder, part_name(rank))
    content = _with_dcp_metadata(backend, folder, _merge(parts, step, opened), parts)
    final = backend.commit(folder, step, manifest.dumps(content))
    with suppress(OSError):  # the next save of the step, or prune, tries again
        _remove_older_generations(backend, final)
    return final


def _with_dcp_metadata(
    backend: Backend, folder: str, content: manifest.Manifest, parts: list[dict[str, Any]]
) -> manifest.Manifest:
    paths = {name: tuple(path) for part in parts for name, path in part["paths"].items()}
    pickled = dcp.metadata_bytes(content, paths, backend.address) if paths else None
    if pickled is None:
        return content
    backend.write(folder, dcp.NAME, [memoryview(pickled)])
    entry = manifest.FileEntry(
        dcp.NAME, len(pickled), hashlib.sha256(pickled).hexdigest(), xxh128=xxh128_of([pickled])
    )
    return replace(content, files=(*content.files, entry))


def _remove_older_generations(backend: Backend, folder: str) -> None:
    kept = layout.parse(folder)
    older = [
        name
        for name in catalog.committed(backend)
        if kept and name.step == kept.step and name.generation < kept.generation
    ]
    if older:
        backend.remove(*map(str, older))


def _merge(parts: list[dict[str, Any]], step: int, opened: dict[str, Any]) -> manifest.Manifest:
    """Raises CheckpointError where the boxes of a tensor do not make up the whole."""
    entries = (manifest.FileEntry(**entry) for part in parts for entry in part["files"])
    files = manifest.by_name(entries)
    objects: dict[str, manifest.Record] = {}
    tensors: dict[str, tuple[str, tuple[int, ...], list[manifest.Record]]] = {}
    for name, dtype, shape, said in (record for part in parts for record in part["records"]):
        record = manifest.record_from_json(said)
        if dtype == OBJECT:
            objects[name] = record
        else:
            tensors.setdefault(name, (dtype, tuple(shape), []))[2].append(record)
    for name, (_, shape, records) in tensors.items():
        problem = covering.problem(shape, records)
        if problem is not None:
            raise manifest.CheckpointError(f"{name}: {problem}")
    return manifest.Manifest(
        step=step,
        world_size=len(parts),
        files=tuple(files[name] for name in sorted(files)),
        tensors={
            name: manifest.Tensor(
                dtype, shape, tuple(sorted(records, key=lambda record: record.offsets))
            )
            for name, (dtype, shape, records) in sorted(tensors.items())
        },
        objects=dict(sorted(objects.items())),
        sequence=opened["sequence"],
        parent=opened["parent"],
        torch=str(getattr(sys.modules.get("torch"), "__version__", "")),
    )
