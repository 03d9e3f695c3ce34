"""What rank 0 does for all ranks in a save: it makes the temporary folder, and later merges the
ranks' parts into the manifest and makes the folder a checkpoint.

A part is a manifest of what one rank wrote. In place of the caller's metadata it has the paths of
the names in the nested state dict.
"""

from __future__ import annotations

import hashlib
import sys
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Mapping, NamedTuple

from . import catalog, dcp, layout, manifest
from .errors import CheckpointError
from .hashes import xxh128_of
from .manifest import Manifest, Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .backends import Backend
    from .items import SavePlan
    from .manifest import Record
    from .writer import RankPart

PATHS = "paths"


class Opened(NamedTuple):
    """The folder that rank 0 made, which all ranks must know.

    parent: the checkpoint before it. sequence: of this commit. incremental: whether files of the
    parent may be linked.
    """

    folder: str
    parent: str | None
    sequence: int
    incremental: bool


def begin(backend: Backend, step: int, incremental: bool) -> Opened:
    """Makes the temporary folder."""
    with suppress(OSError):
        catalog.remove_leftovers(backend)
    parent = catalog.latest(backend)
    content = catalog.manifest_if_intact(backend, parent)
    if content is None:
        # It is damaged: continue from the last commit that can be read.
        parent = next(iter(catalog.intact_newest_first(backend)), None)
        content = catalog.manifest_if_intact(backend, parent)
    sequence = 0
    if content is None:
        parent = None
    else:
        sequence = content.sequence + 1
    folder = backend.begin(step, parent if incremental else None)
    return Opened(folder, parent, sequence, incremental)


def write_part(
    backend: Backend, opened: Opened, plan: SavePlan, part: RankPart, rank: int, world_size: int
) -> None:
    """Writes the list of a rank's files into the folder. Every rank calls it."""
    boxes = []
    objects = {}
    for item, record in part.records:
        if item.is_object:
            objects[item.name] = record
        else:
            boxes.append((item.name, item.dtype, item.shape, record))
    content = Manifest(
        step=0,
        world_size=world_size,
        files=tuple(part.files),
        tensors=_join_boxes(boxes),
        objects=objects,
        metadata={PATHS: plan.paths},
    )
    backend.write(opened.folder, _part_name(rank), [memoryview(manifest.dumps(content))])


def publish(
    backend: Backend,
    opened: Opened,
    step: int,
    world_size: int,
    metadata: Mapping[str, object],
) -> str:
    """Makes the folder a checkpoint, when all ranks' files are durable. Returns its new name."""
    folder = opened.folder
    parts = []
    paths: dict[str, tuple[object, ...]] = {}
    for rank in range(world_size):
        name = _part_name(rank)
        path = f"{backend.root}/{folder}/{name}"
        part = manifest.loads(backend.read(folder, name), path, is_part=True)
        backend.discard(folder, name)
        parts.append(part)
        paths.update((key, tuple(keys)) for key, keys in part.metadata[PATHS].items())
    content = replace(_merge(parts, step, opened), metadata=dict(metadata))
    if paths:
        content = _add_dcp_metadata(backend, folder, content, paths)
    final = backend.commit(folder, step, manifest.dumps(content))
    with suppress(OSError):  # the next save of the step, or prune, tries again
        _remove_older_generations(backend, final)
    return final


def _part_name(rank: int) -> str:
    return f".part-{rank:05d}.json"


def _merge(parts: Sequence[Manifest], step: int, opened: Opened) -> Manifest:
    """The manifest. Raises CheckpointError if the boxes of a tensor do not make up the whole."""
    boxes = []
    objects: dict[str, Record] = {}
    for part in parts:
        objects.update(part.objects)
        for name, tensor in part.tensors.items():
            boxes += [(name, tensor.dtype, tensor.shape, record) for record in tensor.records]
    tensors = _join_boxes(boxes)
    for name, tensor in tensors.items():
        problem = manifest.coverage_problem(tensor.shape, tensor.records)
        if problem is not None:
            raise CheckpointError(f"{name}: {problem}")
    files = manifest.unique_by_name(entry for part in parts for entry in part.files)
    return Manifest(
        step=step,
        world_size=len(parts),
        files=tuple(files[name] for name in sorted(files)),
        tensors=tensors,
        objects=objects,
        sequence=opened.sequence,
        parent=opened.parent,
        torch=str(getattr(sys.modules.get("torch"), "__version__", "")),
    )


def _join_boxes(boxes: Iterable[tuple[str, str, tuple[int, ...], Record]]) -> dict[str, Tensor]:
    """The tensors of boxes with their names, types and shapes, each with its boxes in order."""
    kinds = {}
    records: dict[str, list[Record]] = {}
    for name, dtype, shape, record in boxes:
        kinds[name] = dtype, shape
        records.setdefault(name, []).append(record)
    tensors = {}
    for name, (dtype, shape) in kinds.items():
        ordered = sorted(records[name], key=lambda record: record.offsets)
        tensors[name] = Tensor(dtype, shape, tuple(ordered))
    return tensors


def _add_dcp_metadata(
    backend: Backend, folder: str, content: Manifest, paths: dict[str, tuple[object, ...]]
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
    assert newest is not None
    linked = backend.linked()
    protected = {*linked, *linked.values()}
    older = []
    for name in catalog.committed(backend):
        is_older = name.step == newest.step and name.generation < newest.generation
        if is_older and str(name) not in protected:
            older.append(str(name))
    if older:
        backend.remove(*older)
