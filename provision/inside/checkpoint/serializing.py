"""One piece as torch.save writes it, in parts that may lie in the tensor's own memory: nothing big is copied.

What is written is readable by torch.load, and so by `dcp.load`; where the elements begin is noted, so that loading needs no
unpickling. torch.save's output depends on content alone, which is what makes unchanged pieces recognizable.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from .planning import Item

# The member of torch.save's archive that holds a lone tensor's elements.
ELEMENTS = b"/data/0"
LOCAL_HEADER = b"PK\x03\x04"


@dataclass(frozen=True)
class Serialized:
    """parts together are the record. data: where in it the elements begin; None for an object or an empty tensor."""

    parts: list[memoryview]
    size: int
    data: int | None


def serialize(item: Item) -> Serialized:
    """Tensors of other devices are copied to the host, those that are not contiguous are made so: one piece at a time."""
    if item.is_object:
        return Serialized([memoryview(item.data)], len(item.data), None)
    import torch

    with torch.no_grad():
        held = item.data.cpu().contiguous()
    collector = _Collector(memory_of(held))
    torch.save(_alone(held), collector)
    return Serialized(collector.parts, collector.size, collector.data)


def memory_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor of the host, shared with it; the view keeps the tensor alive."""
    length = tensor.numel() * tensor.element_size()
    array: Any = (ctypes.c_ubyte * length).from_address(tensor.data_ptr()) if length else (ctypes.c_ubyte * 0)()
    array.tensor = tensor
    return memoryview(array).cast("B")


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory with a storage of its own: torch.save writes whole storages, of which a piece is a part."""
    import torch

    if not tensor.numel():
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    return torch.frombuffer(memory_of(tensor), dtype=torch.uint8).view(tensor.dtype).view(tensor.shape)


class _Collector:
    """A file for torch.save: keeps small writes, and for the elements a view of their memory.

    Each member of the archive comes as a header, a name, padding, and content (miniz's order, the same from torch 1.13 to 2.13).
    """

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._until_content = 0
        self._header = False
        self.parts: list[memoryview] = []
        self.size = 0
        self.data: int | None = None

    def write(self, view: memoryview | bytes) -> int:
        length = len(view)
        self._until_content = max(0, self._until_content - 1)
        if self._until_content == 1 and length == len(self._memory) and self.data is None:
            self.data = self.size
            self.parts.append(self._memory)
        else:
            content = bytes(view)
            if self._header and content.endswith(ELEMENTS):
                self._until_content = 3
            self._header = content.startswith(LOCAL_HEADER)
            self.parts.append(memoryview(content))
        self.size += length
        return length

    def flush(self) -> None:
        """torch.save asks for it."""
