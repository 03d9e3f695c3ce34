"""One piece in the format of torch.save, in parts that may be the tensor's own memory: nothing big
is copied.

torch.load, and thus `dcp.load`, reads the files. The offset of the elements is recorded, so that
loading needs no unpickling. The bytes depend on the content alone, so unchanged pieces are
recognized.

torch.save itself makes the archive around the elements, once for each type and shape, of zeros; the
elements and their CRC-32 then replace the zeros' (APPNOTE.TXT of PKWARE, 4.3.9 and 4.3.12). torch.load
never checks it (it is compiled with MINIZ_DISABLE_ZIP_READER_CRC32_CHECKS), but other programs do.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
import threading
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from .errors import CheckpointError
from .items import MAX_PIECE_BYTES

if TYPE_CHECKING:
    import torch

    from .items import Item

# The member of torch.save's archive that holds the elements of a single tensor.
ELEMENTS = b"/data/0"
LOCAL_HEADER = b"PK\x03\x04"
DESCRIPTOR = b"PK\x07\x08"  # the CRC-32 follows
DIRECTORY_ENTRY = b"PK\x01\x02"
DIRECTORY_CRC_AT, NAME_LENGTH_AT, NAME_AT = 16, 28, 46  # from the entry's begin
CRC = struct.Struct("<I")
NAME_LENGTH = struct.Struct("<H")
# Alignment that suits every type of tensor.
ALIGNMENT = 64


@dataclass(frozen=True)
class Serialized:
    """A record without the CRC-32 of its elements, which is slow to compute.

    before, after: what is around the elements. crc_at: offsets of the CRC in `after`. data: offset
    of the elements in the record; None for an object or an empty tensor.
    """

    before: bytes
    elements: memoryview
    after: bytes = b""
    crc_at: tuple[int, ...] = ()
    data: int | None = None

    @property
    def size(self) -> int:
        return len(self.before) + len(self.elements) + len(self.after)

    def crc32(self) -> int:
        """Reads all elements (2.5 to 2.9 GB/s per core, measured) without the interpreter's lock."""
        return zlib.crc32(self.elements) if self.crc_at else 0

    def parts(self, crc32: int) -> list[memoryview]:
        """The record, with this as the CRC-32 of its elements."""
        after = bytearray(self.after)
        for offset in self.crc_at:
            CRC.pack_into(after, offset, crc32)
        return [memoryview(self.before), self.elements, memoryview(after)]


class StagingMemory(threading.local):
    """Per-thread memory for tensors whose bytes must be copied: one piece, or one pack of small
    ones, at a time.

    With malloc, seven threads that each copied 32 MiB repeatedly were seen to keep 605 MB.
    """

    def __init__(self) -> None:
        self._memory: torch.Tensor | None = None
        self._used = 0

    def clear(self) -> None:
        """Frees the memory for reuse: earlier results are invalid from now on."""
        self._used = 0

    def plain(self, data: torch.Tensor) -> torch.Tensor:
        """The same content, contiguous, in host memory; the tensor itself if it already is."""
        import torch

        if is_plain(data):
            return data
        with torch.no_grad():
            return self._copy(data)

    def _copy(self, data: torch.Tensor) -> torch.Tensor:
        import torch

        length = data.numel() * data.element_size()
        if self._memory is None:
            self._memory = torch.empty(MAX_PIECE_BYTES, dtype=torch.uint8, device="cpu")
        begin = -(-self._used // ALIGNMENT) * ALIGNMENT
        target = self._memory[begin : begin + length]
        if len(target) < length:
            target = torch.empty(length, dtype=torch.uint8, device="cpu")
        else:
            self._used = begin + length
        return target.view(data.dtype).view(data.shape).copy_(data)


def serialize(item: Item, staging: StagingMemory) -> Serialized:
    """Copies tensors that are on another device or not contiguous into the staging memory."""
    if item.is_object:
        return Serialized(b"", memoryview(item.data))
    tensor = staging.plain(item.data)
    elements = memory_of(tensor)
    archive = _archive(tensor.dtype, tuple(tensor.shape), len(elements))
    data = len(archive.before) if len(elements) else None
    return Serialized(archive.before, elements, archive.after, archive.crc_at, data)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether its bytes in host memory are its content, in order."""
    return (
        tensor.device.type == "cpu"
        and tensor.is_contiguous()
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether it owns the memory of its elements.

    It does not if it wraps other tensors (quantized, nested, fake...): its address is then 0, or
    asking for it fails.
    """
    try:
        from torch.utils._python_dispatch import is_traceable_wrapper_subclass
    except ImportError:  # torch 1.13 and 2.0
        is_wrapper = False
    else:
        is_wrapper = is_traceable_wrapper_subclass(tensor)
    try:
        return not is_wrapper and (not tensor.numel() or bool(tensor.data_ptr()))
    except RuntimeError:
        return False


def memory_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor in host memory.

    The view shares them, and keeps the tensor alive.
    """
    length = tensor.numel() * tensor.element_size()
    array_type = ctypes.c_ubyte * length
    array: Any = array_type.from_address(tensor.data_ptr()) if length else array_type()
    array.tensor = tensor
    return memoryview(array).cast("B")


@dataclass(frozen=True)
class _Archive:
    """The bytes around the elements; without elements, all of it is before them. crc_at: where
    `after` has the elements' CRC-32."""

    before: bytes
    after: bytes
    crc_at: tuple[int, ...] = ()


@lru_cache(maxsize=1024)
def _archive(dtype: torch.dtype, shape: tuple[int, ...], length: int) -> _Archive:
    import torch

    if not length:
        collector = _Collector(0)
        torch.save(torch.empty(shape, dtype=dtype, device="cpu"), collector)
        return _Archive(bytes(collector.before), b"")
    # Private memory that is only read takes none: all its pages are the kernel's one page of zeros.
    zeros = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    collector = _Collector(length)
    try:
        torch.save(torch.frombuffer(zeros, dtype=torch.uint8).view(dtype).view(shape), collector)
    except KeyError as error:  # 2.3 has torch.uint16 and others that it cannot save
        raise CheckpointError(
            f"torch {torch.__version__} cannot save tensors of type {dtype}"
        ) from error
    after = bytes(collector.after)
    if not collector.is_past:
        raise RuntimeError(f"torch {torch.__version__} saves a tensor in an unknown form")
    return _Archive(bytes(collector.before), after, _crc_offsets(after, zlib.crc32(zeros)))


def _crc_offsets(after: bytes, crc32: int) -> tuple[int, ...]:
    """Where the elements' CRC-32 is in what follows them: in the data descriptor right after them,
    and in the central directory.

    Empty if a release of torch has it elsewhere: the archive then keeps the CRC of the zeros, which
    torch.load accepts.
    """
    offsets = [len(DESCRIPTOR)] if after.startswith(DESCRIPTOR) else []
    entry = after.find(DIRECTORY_ENTRY)
    while entry >= 0:
        name_length = NAME_LENGTH.unpack_from(after, entry + NAME_LENGTH_AT)[0]
        name = after[entry + NAME_AT : entry + NAME_AT + name_length]
        if name.endswith(ELEMENTS):
            offsets.append(entry + DIRECTORY_CRC_AT)
        entry = after.find(DIRECTORY_ENTRY, entry + NAME_AT)
    is_there = [CRC.unpack_from(after, offset)[0] == crc32 for offset in offsets]
    return tuple(offsets) if len(offsets) == 2 and all(is_there) else ()


class _Collector:
    """A file for torch.save that keeps all but the elements.

    Each member of the archive comes as a header, a name, padding, and content (miniz's order, the
    same from torch 1.13 to 2.13).
    """

    def __init__(self, length: int) -> None:
        self._length = length
        self._writes_until_content = 0
        self._after_header = False
        self.before = bytearray()
        self.after = bytearray()
        self.is_past = False

    def write(self, view: memoryview | bytes) -> int:
        length = len(view)
        self._writes_until_content = max(0, self._writes_until_content - 1)
        is_content = self._writes_until_content == 1 and length == self._length
        if is_content and not self.is_past:
            self.is_past = True
            return length
        content = bytes(view)
        if self._after_header and content.endswith(ELEMENTS):
            self._writes_until_content = 3
        self._after_header = content.startswith(LOCAL_HEADER)
        (self.after if self.is_past else self.before).extend(content)
        return length

    def flush(self) -> None:
        """torch.save calls it."""
