"""What rank 0 does for all ranks in a save: it makes the temporary folder, and later merges the
ranks' parts into the manifest and makes the folder a checkpoint.

A part is a manifest of what one rank wrote.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Mapping

from . import catalog, layout, manifest
from .errors import CheckpointError
from .manifest import Manifest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .storage import Storage
    from .writer import WrittenFile


def find_parent(storage: Storage) -> tuple[str | None, Manifest | None]:
    """The checkpoint after which the next one is committed, and its manifest. Removes what dead
    writers left.
    """
    with suppress(OSError):
        catalog.remove_leftovers(storage)
    parent = catalog.latest(storage)
    content = catalog.manifest_if_intact(storage, parent)
    if content is None:
        # It is damaged: continue from the last commit that can be read.
        parent = next(iter(catalog.intact_newest_first(storage)), None)
        content = catalog.manifest_if_intact(storage, parent)
    return (parent, content) if content else (None, None)


def part_of(written: Sequence[WrittenFile], world_size: int) -> Manifest:
    """The list of a rank's files."""
    boxes = []
    objects = {}
    for _, records in written:
        for item, record in records:
            if item.is_object:
                objects[item.name] = record
            else:
                boxes.append((item.name, item.dtype, item.shape, record))
    files = {entry.name: entry for entry, _ in written}
    tensors = manifest.join_boxes(boxes)
    return Manifest(0, world_size, 0, tuple(files.values()), tensors, objects)


def write_part(storage: Storage, folder: str, part: Manifest, rank: int) -> None:
    """Writes the list of a rank's files into the folder, for rank 0."""
    storage.write(folder, _part_name(rank), memoryview(manifest.dumps(part)))
    storage.flush(folder)


def publish(
    storage: Storage,
    folder: str,
    step: int,
    own_part: Manifest,
    *,
    parent: str | None,
    sequence: int,
    metadata: Mapping[str, object],
) -> str:
    """Makes the folder a checkpoint, when all ranks' files are durable. Returns its new name.

    own_part: of this rank, which is 0. Raises CheckpointError if the boxes of a tensor do not make
    up the whole.
    """
    parts = [own_part]
    for rank in range(1, own_part.world_size):
        name = _part_name(rank)
        path = f"{storage.root}/{folder}/{name}"
        parts.append(manifest.loads(storage.read(folder, name), path, is_part=True))
        storage.discard(folder, name)
    boxes = []
    for part in parts:
        for name, tensor in part.tensors.items():
            boxes += [(name, tensor.dtype, tensor.shape, record) for record in tensor.records]
    tensors = manifest.join_boxes(boxes)
    for name, tensor in tensors.items():
        problem = manifest.coverage_problem(tensor.shape, tensor.records)
        if problem is not None:
            raise CheckpointError(f"{name}: {problem}")
    files = {entry.name: entry for part in parts for entry in part.files}
    content = Manifest(
        step=step,
        world_size=len(parts),
        files=tuple(files[name] for name in sorted(files)),
        tensors=tensors,
        objects={name: record for part in parts for name, record in part.objects.items()},
        sequence=sequence,
        parent=parent,
        torch=str(getattr(sys.modules.get("torch"), "__version__", "")),
        metadata=dict(metadata),
    )
    final = storage.commit(folder, step, manifest.dumps(content))
    with suppress(OSError):  # the next save of the step, or prune, tries again
        _remove_older_generations(storage, final)
    return final


def _part_name(rank: int) -> str:
    return f".part-{rank:05d}.json"


def _remove_older_generations(storage: Storage, folder: str) -> None:
    newest = layout.parse(folder)
    assert newest is not None
    linked = storage.linked()
    protected = {*linked, *linked.values()}
    for name in catalog.committed(storage):
        is_older = name.step == newest.step and name.generation < newest.generation
        if is_older and str(name) not in protected:
            storage.remove(str(name))
