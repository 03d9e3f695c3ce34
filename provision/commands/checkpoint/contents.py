"""`provision checkpoint show`: what is in one checkpoint, from its manifest alone."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from provision.core.errors import IntegrityError, InvalidSpec
from provision_runtime.checkpoint import Backend, NoCheckpoint, catalog, loader, manifest

# How often a checkpoint that is replaced while it is looked at is looked for again.
TRIES = 100


@dataclass(frozen=True, kw_only=True)
class ShownTensor:
    """bytes: of its elements. parts: into how many pieces it is cut, which lie in `files`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    parts: int
    files: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ShownObject:
    """bytes: as torch.save wrote it."""

    name: str
    bytes: int
    file: str


@dataclass(frozen=True, kw_only=True)
class ShownFile:
    """xxh128: None where it is not known. home: the folder that holds it, where that is another checkpoint's."""

    name: str
    bytes: int
    sha256: str
    xxh128: str | None
    home: str | None


@dataclass(frozen=True, kw_only=True)
class Shown:
    """bytes: of all files but the manifest."""

    root: str
    folder: str
    step: int
    sequence: int
    parent: str | None
    world_size: int
    torch: str
    bytes: int
    tensors: tuple[ShownTensor, ...]
    objects: tuple[ShownObject, ...]
    files: tuple[ShownFile, ...]


def shown(backend: Backend, step: int | str) -> Shown:
    """Raises InvalidSpec where there is no such step, and IntegrityError where its manifest cannot be read."""
    for _ in range(TRIES):
        folder, of_latest = looked_up(backend, step)
        if of_latest:
            raise _unreadable(of_latest)
        try:
            return _shown(backend, folder, catalog.read_manifest(backend, folder))
        except errors.CheckpointError as error:
            if folder in backend.folders():
                raise _unreadable(error) from error
    raise IntegrityError(
        f"{backend.root}: step {step} was replaced {TRIES} times while it was read."
    )


def looked_up(backend: Backend, step: int | str) -> tuple[str, errors.DamagedFile | None]:
    """The folder, and what is wrong with `latest`, where that was to tell. Raises InvalidSpec where there is none."""
    try:
        return loader.look_up(backend, step)
    except NoCheckpoint as error:
        raise InvalidSpec(f"{error}.") from error


def element_bytes(dtype: str) -> int:
    """Of torch's names: torch.float32 and torch.float8_e4m3fn say their bits, torch.bool has a byte."""
    bits = re.search(r"\d+", dtype)
    return max(1, int(bits[0]) // 8) if bits else 1


def _shown(backend: Backend, folder: str, content: manifest.Manifest) -> Shown:
    return Shown(
        root=backend.root,
        folder=folder,
        step=content.step,
        sequence=content.sequence,
        parent=content.parent,
        world_size=content.world_size,
        torch=content.torch,
        bytes=content.bytes,
        tensors=tuple(_tensor(name, tensor) for name, tensor in content.tensors.items()),
        objects=tuple(
            ShownObject(name=name, bytes=record.size, file=record.file)
            for name, record in content.objects.items()
        ),
        files=tuple(
            ShownFile(
                name=file.name,
                bytes=file.size,
                sha256=file.sha256,
                xxh128=file.xxh128,
                home=file.home,
            )
            for file in content.files
        ),
    )


def _tensor(name: str, tensor: manifest.Tensor) -> ShownTensor:
    return ShownTensor(
        name=name,
        dtype=tensor.dtype,
        shape=tensor.shape,
        bytes=math.prod(tensor.shape) * element_bytes(tensor.dtype),
        parts=len(tensor.records),
        files=tuple(dict.fromkeys(record.file for record in tensor.records)),
    )


def _unreadable(error: errors.CheckpointError) -> IntegrityError:
    if isinstance(error, errors.OtherSchema):
        return IntegrityError(f"{error}.", advice="Use the provision that the job uses.")
    return IntegrityError(
        f"{error}.",
        advice="`provision checkpoint list` shows the others, `checkpoint verify --all` which are whole.",
    )
