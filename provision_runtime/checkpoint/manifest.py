"""The manifest of a checkpoint: its files with size and hashes, and where each tensor is in them.

JSON, so that checkpoints can be listed, verified and pruned without torch and without unpickling.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .errors import CheckpointError, DamagedFile, OtherSchema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

SCHEMA = 4
# Schema 2 had no XXH128, schema 3 did not count links.
READABLE = (2, 3, SCHEMA)
NAME = "manifest.json"
# The manifest begins with the digest of all that follows it, so that a flipped bit in the manifest
# is noticed too.
HEAD = b'{"sha256": "'
AFTER = b'",\n'
DIGITS = 64


@dataclass(frozen=True)
class FileEntry:
    name: str
    size: int
    sha256: str
    # The folder below the root that holds the file, if it is another checkpoint's: a store without
    # links refers to it.
    home: str | None = None
    # None if the file was written, and linked since, only by processes without the package xxhash
    # (hashes.py).
    xxh128: str | None = None
    # How many saves in a row have linked the file since it was written.
    links: int = 0


@dataclass(frozen=True)
class Record:
    """One box of a tensor, or one object, as torch.save wrote it: `size` bytes of `file` from `at`
    on.

    The elements begin at byte `data` of the file; None for an object, or if only torch.load can
    tell. offsets, sizes: the box within the whole tensor, in elements.
    """

    file: str
    at: int
    size: int
    sha256: str
    data: int | None = None
    offsets: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Tensor:
    """dtype in torch's spelling, "torch.float32"; the boxes of the records cover the shape."""

    dtype: str
    shape: tuple[int, ...]
    records: tuple[Record, ...]


@dataclass(frozen=True)
class Manifest:
    """What one checkpoint holds.

    parent: the folder that was the latest when this one was saved. sequence: one more than the
    parent's, since the order of checkpoints must not depend on a clock.
    """

    step: int
    world_size: int
    files: tuple[FileEntry, ...]
    tensors: dict[str, Tensor] = field(default_factory=dict)
    objects: dict[str, Record] = field(default_factory=dict)
    sequence: int = 0
    parent: str | None = None
    torch: str = ""
    # What the caller of `save` wrote into it: values that JSON can hold.
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(entry.size for entry in self.files)

    @property
    def digest(self) -> str:
        """Different for any two commits."""
        return hashlib.sha256(dumps(self)).hexdigest()

    def records(self) -> Iterator[tuple[str, Record]]:
        """Every record with the name of its tensor or object."""
        for name, tensor in self.tensors.items():
            for record in tensor.records:
                yield name, record
        yield from self.objects.items()

    def names_in(self, file: str) -> tuple[str, ...]:
        """The tensors and objects in a file, for people."""
        return tuple(sorted({name for name, record in self.records() if record.file == file}))


def dumps(manifest: Manifest) -> bytes:
    body = json.dumps(_as_json(manifest), sort_keys=True)[1:].encode() + b"\n"
    return HEAD + hashlib.sha256(body).hexdigest().encode() + AFTER + body


def loads(content: bytes, path: object) -> Manifest:
    """Raises DamagedFile if `dumps` did not write this content, OtherSchema if another version
    wrote it.
    """
    begin = len(HEAD) + DIGITS + len(AFTER)
    digest = content[len(HEAD) : len(HEAD) + DIGITS]
    body = content[begin:]
    is_framed = content.startswith(HEAD) and content[len(HEAD) + DIGITS : begin] == AFTER
    if not is_framed or hashlib.sha256(body).hexdigest().encode() != digest:
        raise DamagedFile(path, "its digest does not match its content")
    document = json.loads(b"{" + body)
    if document["schema"] not in READABLE:
        readable = ", ".join(map(str, READABLE[:-1])) + f" and {READABLE[-1]}"
        raise OtherSchema(f"{path} has schema {document['schema']!r}; this code reads {readable}")
    return _from_json(document)


def unique_by_name(entries: Iterable[FileEntry]) -> dict[str, FileEntry]:
    """One entry per name, of those that several ranks list.

    A file in the checkpoint's own folder wins over a reference to another folder; of two equals,
    the entry with more hashes wins.
    """
    ranked = sorted(entries, key=lambda entry: (entry.home is None, entry.xxh128 is not None))
    return {entry.name: entry for entry in ranked}


def coverage_problem(shape: Sequence[int], boxes: Sequence[Record]) -> str | None:
    """Why the boxes do not hold each element of the tensor exactly once; None if they do.

    Boxes that do not overlap and have the tensor's volume leave no gap.
    """
    volume = math.prod(shape)
    boxed = sum(math.prod(box.sizes) for box in boxes)
    if boxed != volume:
        return f"the ranks hold {boxed} of its {volume} elements"
    overlap = _overlap(boxes) if shape else None
    if overlap is None:
        return None
    first, second = (list(box.offsets) for box in overlap)
    return (
        f"the ranks' boxes at {first} and {second} overlap, so others of its elements are missing"
    )


def _overlap(boxes: Sequence[Record]) -> tuple[Record, Record] | None:
    """Two boxes with an element in common.

    Sweeps along the dimension with the most cuts, so that only neighbors are compared.
    """
    if not boxes:
        return None

    def count_cuts(dimension: int) -> int:
        return len({box.offsets[dimension] for box in boxes})

    axis = max(range(len(boxes[0].offsets)), key=count_cuts)
    open_boxes: list[Record] = []
    for box in sorted(boxes, key=lambda box: box.offsets[axis]):
        open_boxes = [
            other
            for other in open_boxes
            if other.offsets[axis] + other.sizes[axis] > box.offsets[axis]
        ]
        for other in open_boxes:
            if _intersect(other, box):
                return other, box
        open_boxes.append(box)
    return None


def _intersect(first: Record, second: Record) -> bool:
    sides = zip(first.offsets, first.sizes, second.offsets, second.sizes)
    return all(
        begin < start + length and start < begin + size for begin, size, start, length in sides
    )


def record_as_json(record: Record) -> list[Any]:
    return [
        record.file,
        record.at,
        record.size,
        record.sha256,
        record.data,
        list(record.offsets),
        list(record.sizes),
    ]


def record_from_json(fields: list[Any]) -> Record:
    file, at, size, sha256, data, offsets, sizes = fields
    return Record(file, at, size, sha256, data, tuple(offsets), tuple(sizes))


def file_as_json(entry: FileEntry) -> dict[str, Any]:
    document: dict[str, Any] = {"name": entry.name, "size": entry.size, "sha256": entry.sha256}
    if entry.xxh128 is not None:
        document["xxh128"] = entry.xxh128
    if entry.home is not None:
        document["home"] = entry.home
    if entry.links:
        document["links"] = entry.links
    return document


def _as_json(manifest: Manifest) -> dict[str, Any]:
    tensors = {}
    for name, tensor in manifest.tensors.items():
        tensors[name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "records": [record_as_json(record) for record in tensor.records],
        }
    document = {
        "schema": SCHEMA,
        "step": manifest.step,
        "sequence": manifest.sequence,
        "parent": manifest.parent,
        "world_size": manifest.world_size,
        "torch": manifest.torch,
        "files": [file_as_json(entry) for entry in manifest.files],
        "record_fields": ["file", "at", "size", "sha256", "data", "offsets", "sizes"],
        "tensors": tensors,
        "objects": {name: record_as_json(record) for name, record in manifest.objects.items()},
    }
    if manifest.metadata:
        document["metadata"] = manifest.metadata
    return document


def _from_json(document: dict[str, Any]) -> Manifest:
    files = tuple(FileEntry(**entry) for entry in document["files"])
    for entry in files:
        for name in (entry.name, entry.home or ""):
            if "/" in name or name in (".", ".."):
                raise CheckpointError(
                    f"the manifest of step {document['step']} names {name!r}, "
                    "which leads out of its folder"
                )
    tensors = {}
    for name, tensor in document["tensors"].items():
        records = tuple(record_from_json(record) for record in tensor["records"])
        tensors[name] = Tensor(tensor["dtype"], tuple(tensor["shape"]), records)
    objects = {name: record_from_json(record) for name, record in document["objects"].items()}
    return Manifest(
        step=document["step"],
        world_size=document["world_size"],
        files=files,
        tensors=tensors,
        objects=objects,
        sequence=document["sequence"],
        parent=document["parent"],
        torch=document["torch"],
        metadata=document.get("metadata", {}),
    )
