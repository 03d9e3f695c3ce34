"""The manifest of a checkpoint: its files with size and hashes, and where each tensor is in them.

JSON, so that checkpoints can be listed, verified and pruned without torch and without unpickling.
Everything in it is checked before anything is read by it: its digest shows accidents, not a program
that wrote other numbers.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
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
# Of a manifest; 550 bytes for a piece of 32 MiB. A value takes 80 bytes of memory at most, and the
# bytes are held three times: so reading takes less than a gigabyte, whatever the content.
MAX_BYTES = 128 << 20
TOO_BIG = f"it has {{}} bytes, at most {MAX_BYTES} are read"
MAX_VALUES = 8_000_000
MAX_DIMENSIONS = 64
MAX_NUMBER = 2**63 - 1
# Of the caller's metadata.
MAX_DEPTH = 100
RECORD_FIELDS = ["file", "at", "size", "sha256", "data", "offsets", "sizes"]


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
        return hashlib.sha256(_body(self)).hexdigest()

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
    """Raises CheckpointError if no reader would accept it."""
    body = _body(manifest)
    content = HEAD + hashlib.sha256(body).hexdigest().encode() + AFTER + body
    try:
        check_size(content)
    except ValueError as error:
        raise CheckpointError(
            f"the manifest is too big: {error}: save fewer tensors, or less metadata"
        ) from error
    return content


def _body(manifest: Manifest) -> bytes:
    return json.dumps(_as_json(manifest), sort_keys=True)[1:].encode() + b"\n"


def loads(content: bytes, path: object) -> Manifest:
    """Raises DamagedFile if `dumps` did not write this content, OtherSchema if another version
    wrote it.
    """
    begin = len(HEAD) + DIGITS + len(AFTER)
    digest = content[len(HEAD) : len(HEAD) + DIGITS]
    body = memoryview(content)[begin:]
    is_framed = content.startswith(HEAD) and content[len(HEAD) + DIGITS : begin] == AFTER
    if not is_framed or hashlib.sha256(body).hexdigest().encode() != digest:
        raise DamagedFile(path, "its digest does not match its content")
    try:
        check_size(content)
        document = json.loads("{" + str(body, "utf-8"), object_pairs_hook=_unique)
        schema = _count(document.get("schema"), "schema")
        if schema not in READABLE:
            readable = ", ".join(map(str, READABLE[:-1])) + f" and {READABLE[-1]}"
            raise OtherSchema(f"{path} has schema {schema}; this code reads {readable}")
        return _from_json(document)
    except RecursionError as error:
        raise DamagedFile(path, "it is nested too deeply") from error
    except ValueError as error:
        raise DamagedFile(path, str(error)) from error


def check_size(content: bytes) -> None:
    """Raises ValueError if reading it would take too much memory."""
    if len(content) > MAX_BYTES:
        raise ValueError(TOO_BIG.format(len(content)))
    # Each value comes after one of these.
    count = sum(content.count(mark) for mark in (b",", b":", b"[", b"{"))
    if count > MAX_VALUES:
        raise ValueError(f"it has up to {count} values, at most {MAX_VALUES} are read")


def check_depth(metadata: Any) -> None:
    """Raises ValueError if it is nested so deeply that some call of a reader could fail."""
    level = [metadata]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, (dict, list)):
                inner += value.values() if isinstance(value, dict) else value
        level = inner
    if level:
        raise ValueError(f"metadata is nested more than {MAX_DEPTH} deep")


def element_bytes(dtype: str) -> int:
    """From torch's names: torch.float32 and torch.float8_e4m3fn state their bits, torch.bool has a
    byte.
    """
    bits = re.search(r"\d+", dtype)
    return max(1, int(bits.group()) // 8) if bits else 1


def possible_digests(content: bytes) -> tuple[str, str]:
    """The digest that a manifest states, and the one that its body has: equal if it is intact, and
    one of them right after a single error.
    """
    stated = content[len(HEAD) : len(HEAD) + DIGITS].decode(errors="replace")
    return stated, hashlib.sha256(content[len(HEAD) + DIGITS + len(AFTER) :]).hexdigest()


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
        "record_fields": RECORD_FIELDS,
        "tensors": tensors,
        "objects": {name: record_as_json(record) for name, record in manifest.objects.items()},
    }
    if manifest.metadata:
        document["metadata"] = manifest.metadata
    return document


# Reading. All of these raise ValueError.


def _from_json(document: dict[str, Any]) -> Manifest:
    files: dict[str, FileEntry] = {}
    for fields in _typed(document.get("files"), list, "files"):
        entry = _file(fields)
        if entry.name in files:
            raise ValueError(f"file {entry.name!r:.80} is there twice")
        files[entry.name] = entry
    _count(sum(entry.size for entry in files.values()), "the size of all files")
    if _typed(document.get("record_fields"), list, "record_fields") != RECORD_FIELDS:
        raise ValueError(f"record_fields is not {RECORD_FIELDS}")
    tensors = {}
    for name, fields in _typed(document.get("tensors"), dict, "tensors").items():
        tensors[name] = _tensor(name, fields, files)
    objects = {}
    for name, fields in _typed(document.get("objects"), dict, "objects").items():
        what = f"object {name!r:.80}"
        objects[name] = record = _record(what, fields, files)
        if name in tensors:
            raise ValueError(f"{what} is a tensor too")
        if record.data is not None or record.offsets or record.sizes:
            raise ValueError(f"{what} has elements")
    parent = document.get("parent")
    content = Manifest(
        step=_count(document.get("step"), "step"),
        world_size=_count(document.get("world_size"), "world_size"),
        files=tuple(files.values()),
        tensors=tensors,
        objects=objects,
        sequence=_count(document.get("sequence"), "sequence"),
        parent=None if parent is None else _file_name(parent, "parent"),
        torch=_typed(document.get("torch"), str, "torch"),
        metadata=_typed(document.get("metadata", {}), dict, "metadata"),
    )
    check_depth(content.metadata)
    _check_ranges(content)
    return content


def _file(fields: Any) -> FileEntry:
    name = _file_name(_typed(fields, dict, "an entry of files").get("name"), "a file")
    what = f"file {name!r:.80}"
    home, xxh128 = fields.get("home"), fields.get("xxh128")
    return FileEntry(
        name=name,
        size=_count(fields.get("size"), f"size of {what}"),
        sha256=_hash(fields.get("sha256"), DIGITS, what),
        home=None if home is None else _file_name(home, f"home of {what}"),
        xxh128=None if xxh128 is None else _hash(xxh128, DIGITS // 2, what),
        links=_count(fields.get("links", 0), f"links of {what}"),
    )


def _tensor(name: str, fields: Any, files: dict[str, FileEntry]) -> Tensor:
    what = f"tensor {name!r:.80}"
    dtype = _typed(_typed(fields, dict, what).get("dtype"), str, f"dtype of {what}")
    if not re.fullmatch(r"torch\.[a-z0-9_]+", dtype):
        raise ValueError(f"dtype of {what} is {dtype!r:.80}")
    shape = _counts(fields.get("shape"), f"shape of {what}")
    records = []
    for record_fields in _typed(fields.get("records"), list, f"records of {what}"):
        record = _record(what, record_fields, files)
        if not len(shape) == len(record.offsets) == len(record.sizes):
            raise ValueError(f"{what}: a record has other dimensions")
        for length, begin, size in zip(shape, record.offsets, record.sizes):
            if begin + size > length:
                raise ValueError(f"{what}: a record is outside of its shape")
        length = math.prod(record.sizes) * element_bytes(dtype)
        begin = record.at if record.data is None else record.data
        if not record.at <= begin <= begin + length <= record.at + record.size:
            raise ValueError(f"{what}: its elements are outside of their record")
        records.append(record)
    problem = coverage_problem(shape, records)
    if problem:
        raise ValueError(f"{what}: {problem}")
    return Tensor(dtype, shape, tuple(records))


def _record(what: str, fields: Any, files: dict[str, FileEntry]) -> Record:
    if len(_typed(fields, list, f"a record of {what}")) != len(RECORD_FIELDS):
        raise ValueError(f"a record of {what} has {len(fields)} fields")
    file, at, size, sha256, data, offsets, sizes = fields
    entry = files.get(_typed(file, str, f"file of {what}"))
    if entry is None:
        raise ValueError(f"{what} is in {file!r:.80}, which is not one of the files")
    record = Record(
        file=entry.name,
        at=_count(at, f"at of {what}"),
        size=_count(size, f"size of {what}"),
        sha256=_hash(sha256, DIGITS, what),
        data=None if data is None else _count(data, f"data of {what}"),
        offsets=_counts(offsets, f"offsets of {what}"),
        sizes=_counts(sizes, f"sizes of {what}"),
    )
    if record.at + record.size > entry.size:
        raise ValueError(f"a record of {what} goes beyond the end of its file")
    if record.size == entry.size and record.sha256 != entry.sha256:
        raise ValueError(f"a record of {what} is all of its file and has another SHA-256")
    return record


def _check_ranges(content: Manifest) -> None:
    """Two records of a file are the same one, or apart."""
    ends: dict[str, int] = {}
    ranges = {
        (record.file, record.at, record.size, record.sha256) for _, record in content.records()
    }
    for file, at, size, _ in sorted(ranges):
        if at < ends.get(file, 0):
            names = ", ".join(map(repr, content.names_in(file)[:3]))
            raise ValueError(f"records of {names} overlap in {file}")
        ends[file] = at + size


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r:.80} is there twice")
    return document


def _typed(value: Any, kind: type, what: str) -> Any:
    if type(value) is not kind:  # a bool is an int
        raise ValueError(f"{what} is {value!r:.80}, which is not of type {kind.__name__}")
    return value


def _count(value: Any, what: str) -> int:
    if not 0 <= _typed(value, int, what) <= MAX_NUMBER:
        raise ValueError(f"{what} is {value!r:.80}")
    return int(value)


def _counts(value: Any, what: str) -> tuple[int, ...]:
    if len(_typed(value, list, what)) > MAX_DIMENSIONS:
        raise ValueError(f"{what} has {len(value)} numbers, at most {MAX_DIMENSIONS} are read")
    return tuple(_count(number, what) for number in value)


def _hash(value: Any, digits: int, what: str) -> str:
    if not re.fullmatch("[0-9a-f]{%d}" % digits, _typed(value, str, f"a hash of {what}")):
        raise ValueError(f"a hash of {what} is {value!r:.80}")
    return str(value)


def _file_name(value: Any, what: str) -> str:
    if _typed(value, str, what) in ("", ".", "..") or "/" in value or "\0" in value:
        raise ValueError(f"{what} is named {value!r:.80}, which leads out of its folder")
    value.encode()
    return str(value)
