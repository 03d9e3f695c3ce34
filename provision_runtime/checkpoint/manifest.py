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
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from operator import attrgetter
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

from ..dataclass import frozen
from ..report.codec import decode
from .errors import CheckpointError, DamagedFile
from .items import MIN_FILE_BYTES, OBJECT, Shape

SCHEMA = 7
NAME = "manifest.json"
# The manifest begins with the digest of all that follows it, so that a flipped bit in the manifest
# is noticed too.
HEAD = b'{"sha256": "'
AFTER = b'",\n'
DIGITS = 64
BODY_AT = len(HEAD) + DIGITS + len(AFTER)
DIGEST = "[0-9a-f]{64}|[0-9a-f]{40}"
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
Bytes = Union[bytes, memoryview]
# How deep the caller's metadata may nest.
MAX_DEPTH = 100
# Characters of what is wrong with a manifest.
MAX_PROBLEM = 300


@frozen
class FileEntry:
    """digest: the hashes of the content, by which files of equal content are known (hashes.py).
    links: how many saves in a row have linked the file since it was written.
    """

    name: str
    size: int
    digest: str
    links: int = 0


class Record(NamedTuple):
    """One box of a tensor, or one object: `size` bytes of `file` from `at` on. Of a tensor these are
    its elements, of an object what torch.save wrote. In JSON it is a list, since there are many.

    A record of MIN_FILE_BYTES and more is a whole file. digest: `record_digest`. offsets, sizes: the
    box within the whole tensor, in elements.
    """

    file: str
    at: int
    size: int
    digest: str
    offsets: Tuple[int, ...] = ()
    sizes: Tuple[int, ...] = ()

    @property
    def is_packed(self) -> bool:
        return self.size < MIN_FILE_BYTES


@frozen
class Tensor:
    """dtype in torch's spelling, "torch.float32"; the boxes of the records cover the shape."""

    dtype: str
    shape: Tuple[int, ...]
    records: Tuple[Record, ...]


NO_TENSOR = Tensor(OBJECT, (), ())


@frozen
class Run:
    """Packed records of whole tensors of one type and shape, one after the other in a file: there may
    be many, and each needs only its name and its digest.
    """

    file: str
    dtype: str
    shape: Tuple[int, ...]
    at: int
    names: List[str]
    digests: str

    @property
    def size(self) -> int:
        """Of a record."""
        return math.prod(self.shape) * element_bytes(self.dtype)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        size, offsets = self.size, (0,) * len(self.shape)
        for number, name in enumerate(self.names):
            at, digest = self.at + number * size, self.digests[CRC_DIGITS * number :][:CRC_DIGITS]
            record = Record(self.file, at, size, digest, offsets, self.shape)
            yield name, Tensor(self.dtype, self.shape, (record,))


@frozen
class Manifest:
    """What one checkpoint holds, or one rank's part of it.

    parent: the folder that was the latest when this one was saved. sequence: one more than the
    parent's, since the order of checkpoints must not depend on a clock.
    """

    step: int
    world_size: int
    sequence: int
    files: Tuple[FileEntry, ...]
    tensors: Dict[str, Tensor] = field(default_factory=dict)
    objects: Dict[str, Record] = field(default_factory=dict)
    parent: Optional[str] = None
    torch: str = ""
    # What the caller of `save` wrote into it: values that JSON can hold.
    metadata: Dict[str, Any] = field(default_factory=dict)

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

    def digest_of(self, name: str, record: Record, content: Bytes) -> str:
        """The digest that a record of this content would have."""
        tensor = self.tensors.get(name, NO_TENSOR)
        return record_digest(content, tensor.dtype, tensor.shape, record.offsets, record.sizes)

    def names_in(self, file: str) -> tuple[str, ...]:
        """The tensors and objects in a file, for people."""
        return tuple(sorted({name for name, record in self.records() if record.file == file}))


def record_digest(content: Bytes, dtype: str, shape: Shape, offsets: Shape, sizes: Shape) -> str:
    """CRC-32 of what a record is, and of its bytes; of a record that is a whole file, of the file's
    digest in their place. So it finds other bytes, and a type or box that is not theirs.
    """
    kind = f"{dtype} {[*shape]} {[*offsets]} {[*sizes]}"
    return f"{zlib.crc32(content, zlib.crc32(kind.encode())):08x}"


def join(boxes: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """The tensors of boxes of tensors, each with its records in order."""
    kinds: dict[str, Tensor] = {}
    records: defaultdict[str, list[Record]] = defaultdict(list)
    for name, box in boxes:
        kinds[name] = box
        records[name] += box.records
    return {
        name: replace(box, records=tuple(sorted(records[name], key=attrgetter("offsets"))))
        for name, box in kinds.items()
    }


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
    runs: list[tuple[Any, list[str], list[str]]] = []
    single = {}
    end = None
    for name, tensor in manifest.tensors.items():
        record = tensor.records[0]
        if not record.is_packed or record.sizes != tensor.shape:
            single[name] = tensor
            continue
        kind = record.file, tensor.dtype, tensor.shape
        if (*kind, record.at) != end:
            names: list[str] = []
            digests: list[str] = []
            runs.append(((*kind, record.at), names, digests))
        names.append(name)
        digests.append(record.digest)
        end = (*kind, record.at + record.size)
    joined = [Run(*(*kind, names, "".join(digests))) for kind, names, digests in runs]
    document = {**vars(manifest), "schema": SCHEMA, "tensors": single, "runs": joined}
    return json.dumps(document, sort_keys=True, default=vars)[1:].encode() + b"\n"


def _head(body: bytes | memoryview) -> bytes:
    return HEAD + hashlib.sha256(body).hexdigest().encode() + AFTER


def loads(content: bytes, path: object, is_part: bool = False) -> Manifest:
    """Raises DamagedFile if `dumps` did not write this content, CheckpointError if another version
    did.

    is_part: the records of a tensor need not cover it.
    """
    body = memoryview(content)[BODY_AT:]
    if content[:BODY_AT] != _head(body):
        raise DamagedFile(path, "its digest does not match its content")
    try:
        check_size(content)
        document = json.loads("{" + str(body, "utf-8"), object_pairs_hook=_unique)
        schema = decode(int, document.pop("schema", None), "schema")
        _check_numbers("schema", schema)
        if schema != SCHEMA:
            raise CheckpointError(
                f"{path} has schema {schema}, this code reads {SCHEMA}: use the version that wrote it. "
                "Most of schema 6 are checkpoints of DCP too: `provision checkpoint import FOLDER "
                "NEW_ROOT --step N --allow-pickle`"
            )
        runs = decode(List[Run], document.pop("runs", None), "runs")
        manifest: Manifest = decode(Manifest, document, "manifest")
        _check(manifest, runs, is_part)
        return manifest
    except RecursionError as error:
        raise DamagedFile(path, "it is nested too deeply") from error
    except ValueError as error:
        raise DamagedFile(path, str(error)[:MAX_PROBLEM]) from error


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
            if isinstance(value, dict) and all(isinstance(key, str) for key in value):
                inner += value.values()
            elif isinstance(value, list):
                inner += value
            elif not isinstance(value, (str, int, float, type(None))):
                raise ValueError(f"metadata must be what JSON can hold, not {value!r:.80}")
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
    return stated, hashlib.sha256(content[BODY_AT:]).hexdigest()


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


# Checks of what was read. All of these raise ValueError.


def _check(content: Manifest, runs: Sequence[Run], is_part: bool) -> None:
    """Adds the tensors of runs to the others."""
    files: dict[str, FileEntry] = {}
    for entry in content.files:
        what = f"file {entry.name!r:.80}"
        if entry.name in files:
            raise ValueError(f"{what} is there twice")
        files[entry.name] = entry
        _check_name(what, entry.name)
        _check_numbers(what, entry.size, entry.links)
        _check_text(f"the digest of {what}", entry.digest, DIGEST)
    _check_numbers("the manifest", content.step, content.world_size, content.sequence)
    _check_numbers("the size of all files", content.bytes)
    if content.parent is not None:
        _check_name("the parent", content.parent)
    for name, tensor in content.tensors.items():
        what = f"tensor {name!r:.80}"
        _check_kind(what, tensor.dtype, tensor.shape)
        if not tensor.records:
            raise ValueError(f"{what} has no record")
        for record in tensor.records:
            _check_record(what, record, tensor, files)
        problem = None if is_part else coverage_problem(tensor.shape, tensor.records)
        if problem:
            raise ValueError(f"{what}: {problem}")
    for run in runs:
        what = f"the run of tensors from {''.join(run.names[:1])!r:.80} on"
        _check_kind(what, run.dtype, run.shape)
        _check_numbers(what, run.at)
        _check_text(
            f"the digests of {what}", run.digests, f"[0-9a-f]{{{CRC_DIGITS * len(run.names)}}}"
        )
        end = run.at + run.size * len(run.names)
        if run.file not in files or end > files[run.file].size:
            raise ValueError(f"{what} is outside of its file")
        for name, tensor in run.tensors():
            if name in content.tensors or len(content.tensors) == MAX_TENSORS:
                raise ValueError(f"tensor {name!r:.80} is there twice, or one too many")
            content.tensors[name] = tensor
    for name, record in content.objects.items():
        what = f"object {name!r:.80}"
        _check_record(what, record, NO_TENSOR, files)
        if name in content.tensors:
            raise ValueError(f"{what} is a tensor too")
    check_metadata(content.metadata)
    # Two records of a file are the same bytes, or apart.
    ends: dict[str, int] = {}
    ranges = {record[:3] for _, record in content.records()}
    for file, at, size in sorted(ranges):
        if at < ends.get(file, 0):
            names = ", ".join(map(repr, content.names_in(file)[:3]))
            raise ValueError(f"records of {names} overlap in {file}")
        ends[file] = at + size


def _check_record(
    what: str, record: Record, tensor: Tensor, files: Mapping[str, FileEntry]
) -> None:
    _check_numbers(what, record.at, record.size, *record.offsets, *record.sizes)
    if record.file not in files:
        raise ValueError(f"{what} is in {record.file!r:.80}, which is not one of the files")
    file = files[record.file]
    if record.at + record.size > file.size:
        raise ValueError(f"a record of {what} goes beyond the end of its file")
    kind = tensor.dtype, tensor.shape, record.offsets, record.sizes
    if record.is_packed:
        _check_text(f"the digest of {what}", record.digest, "[0-9a-f]{8}")
    elif record.size != file.size or record.digest != record_digest(file.digest.encode(), *kind):
        raise ValueError(f"{what}: a record is not the file that it names")
    if not len(tensor.shape) == len(record.offsets) == len(record.sizes):
        raise ValueError(f"{what}: a record has other dimensions")
    for length, begin, size in zip(tensor.shape, record.offsets, record.sizes):
        if begin + size > length:
            raise ValueError(f"{what}: a record is outside of its shape")
    elements = math.prod(record.sizes)
    if tensor is not NO_TENSOR and elements * element_bytes(tensor.dtype) != record.size:
        raise ValueError(f"{what}: a record is not its elements")


def _check_kind(what: str, dtype: str, shape: Sequence[int]) -> None:
    _check_text(f"dtype of {what}", dtype, DTYPE)
    _check_numbers(what, *shape)
    if len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"{what} has {len(shape)} dimensions, at most {MAX_DIMENSIONS} are read")


def _check_name(what: str, name: str) -> None:
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"{what} has the name {name!r:.80}, which leads out of its folder")
    name.encode()


def _check_numbers(what: str, *numbers: int) -> None:
    for number in numbers:
        if not 0 <= number <= MAX_NUMBER:
            raise ValueError(f"{what} has the number {number!r:.80}")


def _check_text(what: str, text: str, pattern: str) -> None:
    if not re.fullmatch(pattern, text):
        raise ValueError(f"{what} is {text!r:.80}")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    document = dict(pairs)
    if len(document) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r:.80} is there twice")
    return document
