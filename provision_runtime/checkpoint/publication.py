"""What rank 0 does for all ranks in a save: it makes the temporary folder, and later merges the
ranks' parts into the manifest and makes the folder a checkpoint.

A part is a manifest of what one rank wrote.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from . import catalog, layout, manifest
from .errors import CheckpointError
from .manifest import Manifest, Tensor

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
    records = [pair for _, pairs in written for pair in pairs]
    tensors = manifest.join(
        (item.name, Tensor(item.dtype, item.shape, (record,)))
        for item, record in records
        if not item.is_object
    )
    objects = {item.name: record for item, record in records if item.is_object}
    files = {entry.name: entry for entry, _ in written}
    return Manifest(0, world_size, 0, tuple(files.values()), tensors, objects)


def write_part(storage: Storage, folder: str, part: Manifest, rank: int) -> None:
    """Writes the list of a rank's files into the folder, for rank 0."""
    storage.write(folder, _part_name(rank), memoryview(manifest.dumps(part)))
    storage.flush(folder)


def publish(storage: Storage, folder: str, first: Manifest) -> str:
    """Makes the folder a checkpoint, when all ranks' files are durable. Returns its new name.

    first: the part of rank 0, with the facts of the checkpoint. Raises CheckpointError if the boxes
    of a tensor do not make up the whole.
    """
    parts = [first]
    for rank in range(1, first.world_size):
        name = _part_name(rank)
        path = f"{storage.root}/{folder}/{name}"
        parts.append(manifest.loads(storage.read(folder, name), path, is_part=True))
        storage.discard(folder, name)
    tensors = manifest.join(pair for part in parts for pair in part.tensors.items())
    for name, tensor in tensors.items():
        problem = manifest.coverage_problem(tensor.shape, tensor.records)
        if problem is not None:
            raise CheckpointError(f"{name}: {problem}")
    files = {entry.name: entry for part in parts for entry in part.files}
    content = replace(
        first,
        files=tuple(files[name] for name in sorted(files)),
        tensors=tensors,
        objects={name: record for part in parts for name, record in part.objects.items()},
        torch=str(getattr(sys.modules.get("torch"), "__version__", "")),
    )
    final = storage.commit(folder, first.step, manifest.dumps(content))
    with suppress(OSError):  # the next save of the step, or prune, tries again
        _remove_older_generations(storage, final)
    return final


def _part_name(rank: int) -> str:
    return f".part-{rank:05d}.json"


def _remove_older_generations(storage: Storage, folder: str) -> None:
    newest = layout.parse(folder)
    linked = storage.linked()
    protected = {*linked, *linked.values()}
    for name in catalog.committed(storage):
        is_older = newest is not None and name.step == newest.step and name < newest
        if is_older and str(name) not in protected:
            storage.remove(str(name))
