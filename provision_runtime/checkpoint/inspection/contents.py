"""`checkpoint show`: what is in one checkpoint, from its manifest alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ...dataclass import frozen
from .. import catalog, choice
from ..errors import CheckpointError, NoCheckpoint
from ..items import Names
from ..manifest import FileEntry, element_bytes
from .root import DAMAGED, INVALID, InspectionError

if TYPE_CHECKING:
    from ..manifest import Manifest
    from ..storage import Step, Storage

# How often to start again when the checkpoint is replaced while it is read.
TRIES = 100


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
    """Raises InspectionError if the step does not exist or its manifest cannot be read."""
    for _ in range(TRIES):
        folder = folder_of(storage, step)
        try:
            return _describe(storage, folder, catalog.read_manifest(storage, folder))
        except CheckpointError as error:
            if folder in storage.folders():
                raise InspectionError(
                    DAMAGED,
                    f"{error}.",
                    "`provision checkpoint list` shows the others; `checkpoint verify --all` checks "
                    "them.",
                ) from error
    raise InspectionError(
        DAMAGED, f"{storage.root}: step {step} was replaced {TRIES} times while it was read."
    )


def folder_of(storage: Storage, step: Step) -> str:
    """The folder. Raises InspectionError."""
    try:
        return choice.folder_of(storage, step)
    except NoCheckpoint as error:
        raise InspectionError(INVALID, f"{error}.") from error


def _describe(storage: Storage, folder: str, content: Manifest) -> Contents:
    tensors = []
    for name, tensor in content.tensors.items():
        tensors.append(
            TensorContent(
                name=name,
                dtype=tensor.dtype,
                shape=tensor.shape,
                bytes=math.prod(tensor.shape) * element_bytes(tensor.dtype),
                parts=len(tensor.records),
                files=tuple(dict.fromkeys(record.file for record in tensor.records)),
            )
        )
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
