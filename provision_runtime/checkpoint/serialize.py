"""One piece as torch.save writes it, in parts that may lie in the tensor's own memory: nothing big is copied.

What is written is readable by torch.load, and so by `dcp.load`; where the elements begin is noted, so that loading needs no
unpickling. It depends on content alone, which is what makes unchanged pieces recognizable.

torch.save itself makes the archive around the elements, once for each type and shape, of zeros; the elements then take the zeros'
place. So it is the zeros' CRC that stands in the archive. torch.load never looks at it (it is compiled with
MINIZ_DISABLE_ZIP_READER_CRC32_CHECKS; torch.serialization.set_crc32_options leaves it out as well), and it would cost as much as a
third of the hashing, while the interpreter is locked: 3.7 to 4.4 GB/s, measured on 2.13. The hashes of the manifest tell damage.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from .items import PIECE
from .manifest import CheckpointError

if TYPE_CHECKING:
    import torch

    from .items import Item

# The member of torch.save's archive that holds a lone tensor's elements.
ELEMENTS = b"/data/0"
LOCAL_HEADER = b"PK\x03\x04"
# Where a tensor may begin, whatever its type.
ALIGNED = 64


@dataclass(frozen=True)
class Serialized:
    """parts together are the record. data: where in it the elements begin; None for an object or an empty tensor."""

    parts: list[memoryview]
    size: int
    data: int | None


class Staging(threading.local):
    """Memory of a thread's own for what must be copied before it is bytes: one piece, or one pack of small ones, at a time.

    Left to malloc, seven threads that each copy 32 MiB again and again were seen to keep 605 MB.
    """

    def __init__(self) -> None:
        self._memory: torch.Tensor | None = None
        self._used = 0

    def clear(self) -> None:
        """What was handed out is of no use any more."""
        self._used = 0

    def plain(self, data: torch.Tensor) -> torch.Tensor:
        """The same content, contiguous, in the host's memory; the tensor itself where it is that."""
        import torch

        if is_plain(data):
            return data
        with torch.no_grad():
            return self._copied(data)

    def _copied(self, data: torch.Tensor) -> torch.Tensor:
        import torch

        length = data.numel() * data.element_size()
        if self._memory is None:
            self._memory = torch.empty(PIECE, dtype=torch.uint8, device="cpu")
        begin = -(-self._used // ALIGNED) * ALIGNED
        room = self._memory[begin : begin + length]
        if len(room) < length:
            room = torch.empty(length, dtype=torch.uint8, device="cpu")
        else:
            self._used = begin + length
        return room.view(data.dtype).view(data.shape).copy_(data)


def serialize(item: Item, staging: Staging) -> Serialized:
    """Tensors of other devices are copied to the host, those that are not contiguous are made so, in the staging memory."""
    if item.is_object:
        return Serialized([memoryview(item.data)], len(item.data), None)
    held = staging.plain(item.data)
    memory = memory_of(held)
    around = _archive(held.dtype, tuple(held.shape), len(memory))
    parts = [memoryview(around.before), memory, memoryview(around.after)]
    data = len(around.before) if len(memory) else None
    return Serialized(parts, len(around.before) + len(memory) + len(around.after), data)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether its bytes in the host's memory are its content, in order."""
    return (
        tensor.device.type == "cpu"
        and tensor.is_contiguous()
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether its elements lie in memory of its own. Not so where it wraps other tensors (quantized, nested, fake...): its address is 0
    or none."""
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
    """The bytes of a contiguous tensor of the host, shared with it; the view keeps the tensor alive."""
    length = tensor.numel() * tensor.element_size()
    array: Any = (
        (ctypes.c_ubyte * length).from_address(tensor.data_ptr())
        if length
        else (ctypes.c_ubyte * 0)()
    )
    array.tensor = tensor
    return memoryview(array).cast("B")


@dataclass(frozen=True)
class _Archive:
    """What stands around the elements; without elements, all of it stands before them."""

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
        raise RuntimeError(
            f"torch {torch.__version__} saves a tensor in another form than is known here"
        )
    return _Archive(bytes(collector.before), bytes(collector.after))


class _Collector:
    """A file for torch.save that keeps all but the elements.

    Each member of the archive comes as a header, a name, padding, and content (miniz's order, the same from torch 1.13 to 2.13).
    """

    def __init__(self, length: int) -> None:
        self._length = length
        self._until_content = 0
        self._header = False
        self.before = bytearray()
        self.after = bytearray()
        self.is_past = False

    def write(self, view: memoryview | bytes) -> int:
        length = len(view)
        self._until_content = max(0, self._until_content - 1)
        if self._until_content == 1 and length == self._length and not self.is_past:
            self.is_past = True
            return length
        content = bytes(view)
        if self._header and content.endswith(ELEMENTS):
            self._until_content = 3
        self._header = content.startswith(LOCAL_HEADER)
        (self.after if self.is_past else self.before).extend(content)
        return length

    def flush(self) -> None:
        """torch.save asks for it."""
