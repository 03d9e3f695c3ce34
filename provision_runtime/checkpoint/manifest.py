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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from .errors import CheckpointError, DamagedFile, OtherSchema

T = TypeVar("T")

SCHEMA = 5
# Schema 4 had no runs; a record's digest was its SHA-256, under that name.
OLD_SCHEMA = 4
NAME = "manifest.json"
# The manifest begins with the digest of all that follows it, so that a flipped bit in the manifest
# is noticed too.
HEAD = b'{"sha256": "'
AFTER = b'",\n'
DIGITS = 64
BODY_AT = len(HEAD) + DIGITS + len(AFTER)
SHA256, XXH128, CRC32 = "[0-9a-f]{64}", "[0-9a-f]{32}", "[0-9a-f]{8}"
RECORD_DIGEST = f"{SHA256}|{XXH128}|{CRC32}"
CRC_DIGITS = 8
DTYPE = r"torch\.[a-z0-9_]+"
# The size of a manifest; 550 bytes for a piece of 32 MiB. A value takes 80 bytes of memory at most, and the
# bytes are held three times: so reading takes less than a gigabyte, whatever the content.
MAX_BYTES = 128 << 20
TOO_BIG = f"it has {{}} bytes, at most {MAX_BYTES} are read"
MAX_VALUES = 8_000_000
# A tensor of a run (_runs) takes the memory of eight values.
MAX_TENSORS = 1_000_000
MAX_DIMENSIONS = 64
MAX_NUMBER = 2**63 - 1
# How deep the caller's metadata may nest.
MAX_DEPTH = 100


@dataclass(frozen=True)
class FileEntry:
    name: str
    size: int
    # What hashes.py computed when the file was written: this one, or both of the others. Schema 4
    # had it, and maybe xxh128.
    sha256: str | None = None
    # The folder below the root that holds the file, if it is another checkpoint's: a store without
    # links refers to it.
    home: str | None = None
    xxh128: str | None = None
    # How many saves in a row have linked the file since it was written.
    links: int = 0
    crc32: str | None = None

    @property
    def digest(self) -> str:
        """The hash by which files of equal content are known. 64 or 40 hexadecimal digits."""
        return self.sha256 or f"{self.xxh128}{self.crc32}"


class Record(NamedTuple):
    """One box of a tensor, or one object: `size` bytes of `file` from `at` on, as torch.save wrote
    it, or the elements alone. In JSON it is a list, since there are many.

    digest: CRC-32 of a record of several in a file; of another the hash of what comes before the
    CRC-32 of its elements. The elements begin at byte `data` of the file; None for an object, or if
    only torch.load can tell. offsets, sizes: the box within the whole tensor, in elements.
    """

    file: str
    at: int
    size: int
    digest: str
    data: int | None = None
    offsets: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()

    @property
    def is_bare(self) -> bool:
        """Whether it is the elements alone."""
        return self.data == self.at


@dataclass(frozen=True)
class Tensor:
    """dtype in torch's spelling, "torch.float32"; the boxes of the records cover the shape."""

    dtype: str
    shape: tuple[int, ...]
    records: tuple[Record, ...]


@dataclass(frozen=True)
class Manifest:
    """What one checkpoint holds, or one rank's part of it.

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
    content = _head(body) + body
    try:
        check_size(content)
        if len(manifest.tensors) > MAX_TENSORS:
            raise ValueError(f"it has more than {MAX_TENSORS} tensors")
    except ValueError as error:
        raise CheckpointError(
            f"the manifest is too big: {error}: save fewer tensors, or less metadata"
        ) from error
    return content


def _body(manifest: Manifest) -> bytes:
    runs, others = _runs(manifest.tensors)
    document = {**vars(manifest), "schema": SCHEMA, "record_fields": Record._fields}
    document.update(tensors=others, runs=runs)
    return json.dumps(document, sort_keys=True, default=vars)[1:].encode() + b"\n"


def _runs(tensors: Mapping[str, Tensor]) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Bare records of whole tensors of one type and shape, one after the other in a file: there may
    be many, and each needs only its name and its digest. And the other tensors.
    """
    runs: list[dict[str, Any]] = []
    others = {}
    expected = None
    for name, tensor in tensors.items():
        record = tensor.records[0]
        if not record.is_bare or record.sizes != tensor.shape or len(record.digest) != CRC_DIGITS:
            others[name] = tensor
            continue
        kind = {"file": record.file, "dtype": tensor.dtype, "shape": tensor.shape}
        if (kind, record.at) != expected:
            runs.append({**kind, "at": record.at, "names": [], "digests": []})
        runs[-1]["names"].append(name)
        runs[-1]["digests"].append(record.digest)
        expected = kind, record.at + record.size
    for run in runs:
        run["digests"] = "".join(run["digests"])
    return runs, others


def _head(body: bytes | memoryview) -> bytes:
    return HEAD + hashlib.sha256(body).hexdigest().encode() + AFTER


def loads(content: bytes, path: object, is_part: bool = False) -> Manifest:
    """Raises DamagedFile if `dumps` did not write this content, OtherSchema if another version
    wrote it.

    is_part: the records of a tensor need not cover it.
    """
    body = memoryview(content)[BODY_AT:]
    if content[:BODY_AT] != _head(body):
        raise DamagedFile(path, "its digest does not match its content")
    try:
        check_size(content)
        document = json.loads("{" + str(body, "utf-8"), object_pairs_hook=_unique)
        fields = _Fields(document, "the manifest")
        schema = fields.count("schema")
        if schema not in (OLD_SCHEMA, SCHEMA):
            text = f"{path} has schema {schema}; this code reads {OLD_SCHEMA} and {SCHEMA}"
            raise OtherSchema(text)
        return _from_json(fields, schema == OLD_SCHEMA, is_part)
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


def check_metadata(metadata: object) -> None:
    """Raises ValueError unless JSON can hold it, and every reader can follow how it is nested."""
    level = [metadata]
    for _ in range(MAX_DEPTH):
        inner: list[object] = []
        for value in level:
            if isinstance(value, list) or (isinstance(value, dict) and all(map(_is_text, value))):
                inner += value.values() if isinstance(value, dict) else value
            elif not isinstance(value, (str, int, float, type(None))):
                raise ValueError(f"metadata must be what JSON can hold, not {value!r:.80}")
        level = inner
    if level:
        raise ValueError(f"metadata is nested more than {MAX_DEPTH} deep")


def _is_text(key: object) -> bool:
    return isinstance(key, str)


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
    return stated, hashlib.sha256(content[BODY_AT:]).hexdigest()


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
            sides = zip(other.offsets, other.sizes, box.offsets, box.sizes)
            if all(
                begin < start + length and start < begin + size
                for begin, size, start, length in sides
            ):
                return other, box
        open_boxes.append(box)
    return None


# Reading. All of these raise ValueError.


class _Fields:
    """The fields of a JSON object, which are checked when they are read."""

    def __init__(self, values: object, what: str) -> None:
        self._values = _typed(values, dict, what)
        self._what = what

    def get(self, key: str, kind: type[T]) -> T:
        return _typed(self._values.get(key), kind, f"{key} of {self._what}")

    def is_null(self, key: str) -> bool:
        return self._values.get(key) is None

    def count(self, key: str) -> int:
        return _count(self._values.get(key), f"{key} of {self._what}")

    def counts(self, key: str) -> tuple[int, ...]:
        numbers = self.get(key, list)
        what = f"{key} of {self._what}"
        if len(numbers) > MAX_DIMENSIONS:
            raise ValueError(
                f"{what} has {len(numbers)} numbers, at most {MAX_DIMENSIONS} are read"
            )
        return tuple(_count(number, what) for number in numbers)

    def text(self, key: str, pattern: str) -> str:
        text = self.get(key, str)
        if not re.fullmatch(pattern, text):
            raise ValueError(f"{key} of {self._what} is {text!r:.80}")
        return text

    def file_name(self, key: str) -> str:
        name = self.get(key, str)
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise ValueError(
                f"{key} of {self._what} is {name!r:.80}, which leads out of its folder"
            )
        name.encode()
        return name


def _from_json(fields: _Fields, is_old: bool, is_part: bool) -> Manifest:
    record_fields = ["sha256" if is_old and name == "digest" else name for name in Record._fields]
    if fields.get("record_fields", list) != record_fields:
        raise ValueError(f"record_fields is not {record_fields}")
    files: dict[str, FileEntry] = {}
    for values in fields.get("files", list):
        entry = _file(values)
        if entry.name in files:
            raise ValueError(f"file {entry.name!r:.80} is there twice")
        files[entry.name] = entry
    _count(sum(entry.size for entry in files.values()), "the size of all files")
    tensors = {}
    for name, values in fields.get("tensors", dict).items():
        tensors[name] = tensor = _tensor(name, values, files)
        problem = None if is_part else coverage_problem(tensor.shape, tensor.records)
        if problem:
            raise ValueError(f"tensor {name!r:.80}: {problem}")
    for name, tensor in _run_tensors([] if is_old else fields.get("runs", list), files):
        if name in tensors or len(tensors) == MAX_TENSORS:
            raise ValueError(f"tensor {name!r:.80} is there twice, or one too many")
        tensors[name] = tensor
    objects = {}
    for name, values in fields.get("objects", dict).items():
        what = f"object {name!r:.80}"
        objects[name] = record = _record(what, values, files)
        if name in tensors:
            raise ValueError(f"{what} is a tensor too")
        if record.data is not None or record.offsets or record.sizes:
            raise ValueError(f"{what} has elements")
    content = Manifest(
        step=fields.count("step"),
        world_size=fields.count("world_size"),
        files=tuple(files.values()),
        tensors=tensors,
        objects=objects,
        sequence=fields.count("sequence"),
        parent=None if fields.is_null("parent") else fields.file_name("parent"),
        torch=fields.get("torch", str),
        metadata=fields.get("metadata", dict),
    )
    check_metadata(content.metadata)
    # Two records of a file are the same one, or apart.
    ends: dict[str, int] = {}
    ranges = {record[:4] for _, record in content.records()}
    for file, at, size, _ in sorted(ranges):
        if at < ends.get(file, 0):
            names = ", ".join(map(repr, content.names_in(file)[:3]))
            raise ValueError(f"records of {names} overlap in {file}")
        ends[file] = at + size
    return content


def _file(values: object) -> FileEntry:
    name = _Fields(values, "a file").file_name("name")
    fields = _Fields(values, f"file {name!r:.80}")
    entry = FileEntry(
        name=name,
        size=fields.count("size"),
        sha256=None if fields.is_null("sha256") else fields.text("sha256", SHA256),
        home=None if fields.is_null("home") else fields.file_name("home"),
        xxh128=None if fields.is_null("xxh128") else fields.text("xxh128", XXH128),
        links=fields.count("links"),
        crc32=None if fields.is_null("crc32") else fields.text("crc32", CRC32),
    )
    if not (entry.sha256 or (entry.xxh128 and entry.crc32)):
        raise ValueError(f"file {name!r:.80} has too few hashes")
    return entry


def _run_tensors(
    runs: Sequence[object], files: dict[str, FileEntry]
) -> Iterator[tuple[str, Tensor]]:
    """What `_runs` took together."""
    for values in runs:
        fields = _Fields(values, "a run of tensors")
        names, shape, at = fields.get("names", list), fields.counts("shape"), fields.count("at")
        dtype, digests = fields.text("dtype", DTYPE), fields.text("digests", f"({CRC32})+")
        size = math.prod(shape) * element_bytes(dtype)
        entry = files.get(fields.get("file", str))
        if len(digests) != CRC_DIGITS * len(names):
            raise ValueError(f"a run of {len(names)} tensors has other digests")
        if entry is None or at + size * len(names) > entry.size:
            raise ValueError(f"the run of tensors from {names[0]!r:.80} on is outside of its file")
        offsets = (0,) * len(shape)
        for number, name in enumerate(names):
            begin = at + number * size
            digest = digests[CRC_DIGITS * number :][:CRC_DIGITS]
            record = Record(entry.name, begin, size, digest, begin, offsets, shape)
            yield _typed(name, str, "a name in a run"), Tensor(dtype, shape, (record,))


def _tensor(name: str, values: object, files: dict[str, FileEntry]) -> Tensor:
    what = f"tensor {name!r:.80}"
    fields = _Fields(values, what)
    dtype = fields.text("dtype", DTYPE)
    shape = fields.counts("shape")
    records = []
    for record_values in fields.get("records", list):
        record = _record(what, record_values, files)
        if not len(shape) == len(record.offsets) == len(record.sizes):
            raise ValueError(f"{what}: a record has other dimensions")
        for length, begin, size in zip(shape, record.offsets, record.sizes):
            if begin + size > length:
                raise ValueError(f"{what}: a record is outside of its shape")
        length = math.prod(record.sizes) * element_bytes(dtype)
        begin = record.at if record.data is None else record.data
        if not record.at <= begin <= begin + length <= record.at + record.size:
            raise ValueError(f"{what}: its elements are outside of their record")
        if record.is_bare and length != record.size:
            raise ValueError(f"{what}: its record is not its elements")
        records.append(record)
    return Tensor(dtype, shape, tuple(records))


def _record(what: str, values: object, files: dict[str, FileEntry]) -> Record:
    listed = _typed(values, list, f"a record of {what}")
    if len(listed) != len(Record._fields):
        raise ValueError(f"a record of {what} has {len(listed)} fields")
    fields = _Fields(dict(zip(Record._fields, listed)), what)
    file = fields.get("file", str)
    if file not in files:
        raise ValueError(f"{what} is in {file!r:.80}, which is not one of the files")
    entry = files[file]
    record = Record(
        file=entry.name,
        at=fields.count("at"),
        size=fields.count("size"),
        digest=fields.text("digest", RECORD_DIGEST),
        data=None if fields.is_null("data") else fields.count("data"),
        offsets=fields.counts("offsets"),
        sizes=fields.counts("sizes"),
    )
    if record.at + record.size > entry.size:
        raise ValueError(f"a record of {what} goes beyond the end of its file")
    return record


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    document = dict(pairs)
    if len(document) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r:.80} is there twice")
    return document


def _typed(value: object, kind: type[T], what: str) -> T:
    if type(value) is not kind:  # a bool is an int
        raise ValueError(f"{what} is {value!r:.80}, which is not of type {kind.__name__}")
    return value


def _count(value: object, what: str) -> int:
    number = _typed(value, int, what)
    if not 0 <= number <= MAX_NUMBER:
        raise ValueError(f"{what} is {number!r:.80}")
    return number
