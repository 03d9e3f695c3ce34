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
import io
import mmap
import re
import struct
import threading
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from .errors import CheckpointError
from .items import MAX_PIECE_BYTES

if TYPE_CHECKING:
    import torch

    from .items import Item

CRC = struct.Struct("<I")
# Alignment that suits every type of tensor.
ALIGNMENT = 64


@dataclass(frozen=True)
class Archive:
    """What is around the elements of a tensor; without elements, all of it is before them.

    crc_at: offsets of the elements' CRC-32 in `after`.
    """

    before: bytes = b""
    after: bytes = b""
    crc_at: tuple[int, ...] = ()


BARE = Archive()


class Serialized(NamedTuple):
    """A record without the CRC-32 of its elements, which is slow to compute.

    data: the offset of the elements in the record; None for an object or an empty tensor's archive.
    """

    archive: Archive
    elements: memoryview
    data: int | None = None

    @property
    def size(self) -> int:
        return len(self.archive.before) + len(self.elements) + len(self.archive.after)

    def crc32(self) -> int:
        """Reads all elements (2.5 to 2.9 GB/s per core, measured) without the interpreter's lock."""
        return zlib.crc32(self.elements)

    def parts(self, crc32: int) -> list[memoryview]:
        """The record, with this as the CRC-32 of its elements."""
        after = bytearray(self.archive.after)
        for offset in self.archive.crc_at:
            CRC.pack_into(after, offset, crc32)
        return [memoryview(self.archive.before), self.elements, memoryview(after)]


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


def serialize(item: Item, staging: StagingMemory, is_bare: bool = False) -> Serialized:
    """Copies tensors that are on another device or not contiguous into the staging memory.

    is_bare: only the elements, without an archive around them.
    """
    if item.is_object:
        return Serialized(BARE, memoryview(item.data))
    tensor = staging.plain(item.data)
    elements = memory_of(tensor)
    if is_bare:
        return Serialized(BARE, elements, 0)
    archive = _archive(tensor.dtype, tuple(tensor.shape), len(elements))
    return Serialized(archive, elements, len(archive.before) if archive.after else None)


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


@lru_cache(maxsize=1024)
def _archive(dtype: torch.dtype, shape: tuple[int, ...], length: int) -> Archive:
    import torch

    if not length:
        buffer = io.BytesIO()
        torch.save(torch.empty(shape, dtype=dtype, device="cpu"), buffer)
        return Archive(buffer.getvalue())
    # Private memory that is only read takes none: all its pages are the kernel's one page of zeros.
    zeros = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    collector = _Collector(zeros)
    try:
        torch.save(torch.frombuffer(zeros, dtype=torch.uint8).view(dtype).view(shape), collector)
    except KeyError as error:  # 2.3 has torch.uint16 and others that it cannot save
        raise CheckpointError(
            f"torch {torch.__version__} cannot save tensors of type {dtype}"
        ) from error
    after = bytes(collector.after)
    if not collector.is_past:
        raise RuntimeError(f"torch {torch.__version__} saves a tensor in an unknown form")
    # Where the elements' CRC-32 is in what follows them: in the data descriptor right after
    # them, and in the central directory. Empty if a release of torch has it elsewhere: the
    # archive then keeps the CRC of the zeros, which torch.load accepts.
    offsets = tuple(
        match.start() for match in re.finditer(re.escape(CRC.pack(zlib.crc32(zeros))), after)
    )
    return Archive(bytes(collector.before), after, offsets if len(offsets) == 2 else ())


class _Collector:
    """A file for torch.save that keeps all but the elements, which are zeros."""

    def __init__(self, elements: mmap.mmap | bytes) -> None:
        self._length = len(elements)
        self._crc32 = zlib.crc32(elements)
        self.before = bytearray()
        self.after = bytearray()
        self.is_past = False

    def write(self, view: memoryview | bytes) -> int:
        length = len(view)
        could_be_elements = length == self._length and not self.is_past
        if could_be_elements and zlib.crc32(view) == self._crc32:
            self.is_past = True
        else:
            (self.after if self.is_past else self.before).extend(view)
        return length

    def flush(self) -> None:
        """torch.save calls it."""
