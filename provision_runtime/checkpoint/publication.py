"""What rank 0 does for all ranks in a save: it makes the temporary folder, and later merges the
ranks' parts into the manifest and makes the folder a checkpoint.

A part is a manifest of what one rank wrote. In place of the caller's metadata it has the paths of
the names in the nested state dict.
"""

from __future__ import annotations

import sys
import zlib
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Mapping, NamedTuple

from . import catalog, dcp, hashes, layout, manifest
from .errors import CheckpointError
from .manifest import Manifest, Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .backends import Backend
    from .items import Paths, SavePlan, Shape
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


def begin(backend: Backend, step: int, incremental: bool) -> tuple[Opened, Manifest | None]:
    """Makes the temporary folder. Returns the parent's manifest too."""
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
    return Opened(folder, parent, sequence, incremental), content


def part_of(plan: SavePlan, part: RankPart, world_size: int) -> Manifest:
    """The list of a rank's files."""
    boxes = []
    objects = {}
    for item, record in part.records:
        if item.is_object:
            objects[item.name] = record
        else:
            boxes.append((item.name, item.dtype, item.shape, record))
    return Manifest(
        step=0,
        world_size=world_size,
        sequence=0,
        files=tuple(part.files),
        tensors=_join_boxes(boxes),
        objects=objects,
        metadata={PATHS: plan.paths},
    )


def write_part(backend: Backend, opened: Opened, part: Manifest, rank: int) -> None:
    """Writes the list of a rank's files into the folder, for rank 0."""
    backend.write(opened.folder, _part_name(rank), [memoryview(manifest.dumps(part))])


def publish(
    backend: Backend,
    opened: Opened,
    step: int,
    own_part: Manifest,
    metadata: Mapping[str, object],
) -> str:
    """Makes the folder a checkpoint, when all ranks' files are durable. Returns its new name.

    own_part: of this rank, which is 0.
    """
    folder = opened.folder
    parts = [own_part]
    for rank in range(1, own_part.world_size):
        name = _part_name(rank)
        path = f"{backend.root}/{folder}/{name}"
        parts.append(manifest.loads(backend.read(folder, name), path, is_part=True))
        backend.discard(folder, name)
    paths: Paths = {}
    for part in parts:
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
    files = {entry.name: entry for part in parts for entry in part.files}
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


def _join_boxes(boxes: Iterable[tuple[str, str, Shape, Record]]) -> dict[str, Tensor]:
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


def _add_dcp_metadata(backend: Backend, folder: str, content: Manifest, paths: Paths) -> Manifest:
    pickled = dcp.metadata_bytes(content, paths)
    if pickled is None:
        return content
    backend.write(folder, dcp.NAME, [memoryview(pickled)])
    digest = hashes.new()
    digest.update(pickled)
    named = hashes.digest(digest.hexdigest(), zlib.crc32(pickled))
    entry = manifest.FileEntry(dcp.NAME, len(pickled), named)
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
