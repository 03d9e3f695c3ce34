"""The manifest of a checkpoint: which files it has, with size and hashes, and which tensors lie where in them.

JSON, so that a checkpoint can be listed, verified and thinned out without torch and without unpickling anything.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SCHEMA = 3
# 2 had no XXH128.
READABLE = (2, SCHEMA)
NAME = "manifest.json"
# The manifest begins with the digest of all that follows it, so that a flipped bit in the manifest is noticed too.
HEAD = b'{"sha256": "'
AFTER = b'",\n'
DIGITS = 64


class CheckpointError(Exception):
    """Something about a checkpoint is not as it must be; the text names the file or the rank."""


class DamagedFile(CheckpointError):
    """A file of a checkpoint is not what was committed; `tensors` are the names of what lies in it, as far as that is known."""

    def __init__(self, path: object, problem: str, tensors: tuple[str, ...] = ()) -> None:
        super().__init__(f"{path} is damaged: {problem}{_in_words(tensors)}")
        self.path = str(path)
        self.problem = problem
        self.tensors = tensors

    def __reduce__(self) -> tuple[Any, ...]:
        """So that another process may be told: exceptions are made again from their text alone."""
        return type(self), (self.path, self.problem, self.tensors)


class OtherSchema(CheckpointError):
    """The manifest is whole, but another version of this code wrote it."""


@dataclass(frozen=True)
class FileEntry:
    name: str
    size: int
    sha256: str
    # The folder below the root that holds the file, where it is not the checkpoint's own: stores without links refer to it.
    home: str | None = None
    # None where who wrote it had no package xxhash (hashes.py), and nobody who had it has read the content since.
    xxh128: str | None = None


@dataclass(frozen=True)
class Record:
    """One box of a tensor, or one object, as torch.save wrote it: `size` bytes of `file` from `at` on.

    The elements begin at byte `data` of the file (None: only torch.load can tell, or it is an object). offsets, sizes: the box
    within the whole tensor, in elements.
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
    """dtype as torch writes it, torch.float32; the boxes of its records cover the shape."""

    dtype: str
    shape: tuple[int, ...]
    records: tuple[Record, ...]


@dataclass(frozen=True)
class Manifest:
    """sequence counts the commits of a root along `parent`, the folder that was the latest when this one was saved: the order of
    checkpoints must not depend on anybody's clock."""

    step: int
    world_size: int
    files: tuple[FileEntry, ...]
    tensors: dict[str, Tensor] = field(default_factory=dict)
    objects: dict[str, Record] = field(default_factory=dict)
    sequence: int = 0
    parent: str | None = None
    torch: str = ""

    @property
    def bytes(self) -> int:
        return sum(entry.size for entry in self.files)

    @property
    def digest(self) -> str:
        """Tells this commit from any other."""
        return hashlib.sha256(dumps(self)).hexdigest()

    def records(self) -> Iterator[tuple[str, Record]]:
        """Every record with the name of its tensor or object."""
        for name, tensor in self.tensors.items():
            for record in tensor.records:
                yield name, record
        yield from self.objects.items()

    def names_in(self, file: str) -> tuple[str, ...]:
        """What lies in a file, for people."""
        return tuple(sorted({name for name, record in self.records() if record.file == file}))


def dumps(manifest: Manifest) -> bytes:
    body = json.dumps(_body(manifest), sort_keys=True)[1:].encode() + b"\n"
    return HEAD + hashlib.sha256(body).hexdigest().encode() + AFTER + body


def loads(content: bytes, path: object) -> Manifest:
    """Raises DamagedFile where the content is not what dumps wrote, and OtherSchema where another version wrote it."""
    begin = len(HEAD) + DIGITS + len(AFTER)
    stated, body = content[len(HEAD) : len(HEAD) + DIGITS], content[begin:]
    framed = content.startswith(HEAD) and content[len(HEAD) + DIGITS : begin] == AFTER
    if not framed or hashlib.sha256(body).hexdigest().encode() != stated:
        raise DamagedFile(path, "its digest does not match its content")
    said = json.loads(b"{" + body)
    if said["schema"] not in READABLE:
        raise OtherSchema(
            f"{path} has schema {said['schema']!r}; this code reads {' and '.join(map(str, READABLE))}"
        )
    return _manifest(said)


def by_name(entries: Iterable[FileEntry]) -> dict[str, FileEntry]:
    """Of several of one name the one that was written counts, not one that was referred to: it lies in the checkpoint's folder. Of two
    such, the one that says more."""
    return {
        entry.name: entry
        for entry in sorted(
            entries, key=lambda entry: (entry.home is None, entry.xxh128 is not None)
        )
    }


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


def record_from_json(said: list[Any]) -> Record:
    file, at, size, sha256, data, offsets, sizes = said
    return Record(file, at, size, sha256, data, tuple(offsets), tuple(sizes))


def file_as_json(entry: FileEntry) -> dict[str, Any]:
    others = {"xxh128": entry.xxh128, "home": entry.home}
    known = {key: value for key, value in others.items() if value is not None}
    return {"name": entry.name, "size": entry.size, "sha256": entry.sha256, **known}


def _body(manifest: Manifest) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "step": manifest.step,
        "sequence": manifest.sequence,
        "parent": manifest.parent,
        "world_size": manifest.world_size,
        "torch": manifest.torch,
        "files": [file_as_json(entry) for entry in manifest.files],
        "record_fields": ["file", "at", "size", "sha256", "data", "offsets", "sizes"],
        "tensors": {
            name: {
                "dtype": tensor.dtype,
                "shape": list(tensor.shape),
                "records": [record_as_json(record) for record in tensor.records],
            }
            for name, tensor in manifest.tensors.items()
        },
        "objects": {name: record_as_json(record) for name, record in manifest.objects.items()},
    }


def _manifest(said: dict[str, Any]) -> Manifest:
    files = tuple(FileEntry(**entry) for entry in said["files"])
    for name in (part for entry in files for part in (entry.name, entry.home or "")):
        if "/" in name or name in (".", ".."):
            raise CheckpointError(
                f"the manifest of step {said['step']} names {name!r}, which leads out of its folder"
            )
    tensors = {
        name: Tensor(
            tensor["dtype"], tuple(tensor["shape"]), tuple(map(record_from_json, tensor["records"]))
        )
        for name, tensor in said["tensors"].items()
    }
    return Manifest(
        step=said["step"],
        world_size=said["world_size"],
        files=files,
        tensors=tensors,
        objects={name: record_from_json(record) for name, record in said["objects"].items()},
        sequence=said["sequence"],
        parent=said["parent"],
        torch=said["torch"],
    )


def _in_words(tensors: tuple[str, ...]) -> str:
    if not tensors:
        return ""
    shown = ", ".join(tensors[:3])
    return f" (it holds {shown}{f' and {len(tensors) - 3} more' if len(tensors) > 3 else ''})"
