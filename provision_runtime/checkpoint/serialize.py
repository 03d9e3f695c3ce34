"""One piece in the format of torch.save, in parts that may be the tensor's own memory: nothing big
is copied.

torch.load, and thus `dcp.load`, reads the files. The offset of the elements is recorded, so that
loading needs no unpickling. The bytes depend on the content alone, so unchanged pieces are
recognized.

torch.save itself makes the archive around the elements, once for each type and shape, of zeros; the
elements then replace the zeros. So the archive holds the CRC of the zeros. torch.load never checks
it (it is compiled with MINIZ_DISABLE_ZIP_READER_CRC32_CHECKS; torch.serialization.set_crc32_options
omits it as well), and computing it would cost as much as a third of the hashing, while the
interpreter is locked: 3.7 to 4.4 GB/s, measured on 2.13. The hashes in the manifest detect damage.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
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
# Alignment that suits every type of tensor.
ALIGNMENT = 64


@dataclass(frozen=True)
class Serialized:
    """The parts together are the record. data: offset of the elements in it; None for an object or
    an empty tensor.
    """

    parts: list[memoryview]
    size: int
    data: int | None


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
        return Serialized([memoryview(item.data)], len(item.data), None)
    tensor = staging.plain(item.data)
    elements = memory_of(tensor)
    archive = _archive(tensor.dtype, tuple(tensor.shape), len(elements))
    parts = [memoryview(archive.before), elements, memoryview(archive.after)]
    size = sum(len(part) for part in parts)
    return Serialized(parts, size, len(archive.before) if len(elements) else None)


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
    """The bytes around the elements; without elements, all of it is before them."""

    before: bytes
    after: bytes


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
    if not collector.is_past:
        raise RuntimeError(f"torch {torch.__version__} saves a tensor in an unknown form")
    return _Archive(bytes(collector.before), bytes(collector.after))


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
