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
    from ..backends import Backend, Step
    from ..errors import DamagedFile
    from ..manifest import Manifest

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


def read_contents(backend: Backend, step: Step) -> Contents:
    """Raises InspectionError if the step does not exist or its manifest cannot be read."""
    for _ in range(TRIES):
        folder, latest_damage = look_up(backend, step)
        if latest_damage:
            raise _unreadable(latest_damage)
        try:
            return _describe(backend, folder, catalog.read_manifest(backend, folder))
        except CheckpointError as error:
            if folder in backend.folders():
                raise _unreadable(error) from error
    raise InspectionError(
        DAMAGED, f"{backend.root}: step {step} was replaced {TRIES} times while it was read."
    )


def look_up(backend: Backend, step: Step) -> tuple[str, DamagedFile | None]:
    """The folder; and the damage of `latest`, if needed to choose. Raises InspectionError."""
    try:
        return choice.look_up(backend, step)
    except NoCheckpoint as error:
        raise InspectionError(INVALID, f"{error}.") from error


def _describe(backend: Backend, folder: str, content: Manifest) -> Contents:
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
        root=backend.root,
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


def _unreadable(error: CheckpointError) -> InspectionError:
    return InspectionError(
        DAMAGED,
        f"{error}.",
        "`provision checkpoint list` shows the others; `checkpoint verify --all` checks them.",
    )
