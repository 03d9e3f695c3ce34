"""`checkpoint show`: what is in one checkpoint, from its manifest alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ...dataclass import frozen
from .. import catalog
from ..items import Names
from ..manifest import FileEntry, element_bytes

if TYPE_CHECKING:
    from ..storage import Step, Storage


@frozen
class TensorContent:
    """bytes: of its elements. parts: the number of pieces, which are in `files`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    parts: int
    files: Names


@frozen
class ObjectContent:
    """bytes: as torch.save wrote it."""

    name: str
    bytes: int
    file: str


@frozen
class Contents:
    """bytes: of all files but the manifest."""

    root: str
    folder: str
    step: int
    sequence: int
    parent: str | None
    world_size: int
    torch: str
    bytes: int
    tensors: tuple[TensorContent, ...]
    objects: tuple[ObjectContent, ...]
    files: tuple[FileEntry, ...]


def read_contents(storage: Storage, step: Step) -> Contents:
    """Raises NoCheckpoint; CheckpointError if the manifest cannot be read."""
    folder, content = catalog.read_step(storage, step)
    tensors = [
        TensorContent(
            name=name,
            dtype=tensor.dtype,
            shape=tensor.shape,
            bytes=math.prod(tensor.shape) * element_bytes(tensor.dtype),
            parts=len(tensor.records),
            files=tuple(dict.fromkeys(record.file for record in tensor.records)),
        )
        for name, tensor in content.tensors.items()
    ]
    objects = [
        ObjectContent(name, record.size, record.file) for name, record in content.objects.items()
    ]
    return Contents(
        root=storage.root,
        folder=folder,
        step=content.step,
        sequence=content.sequence,
        parent=content.parent,
        world_size=content.world_size,
        torch=content.torch,
        bytes=content.bytes,
        tensors=tuple(tensors),
        objects=tuple(objects),
        files=content.files,
    )
