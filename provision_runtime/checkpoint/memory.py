"""The bytes of tensors: their own memory where possible, so that nothing big is copied.

They depend on the content alone, so unchanged pieces are recognized.
"""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING, Any

from .items import MAX_PIECE_BYTES

if TYPE_CHECKING:
    import torch

# Alignment that suits every type of tensor.
ALIGNMENT = 64


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

    def bytes_of(self, data: torch.Tensor) -> memoryview:
        """The bytes of a tensor, which are copied if it is on another device or not contiguous."""
        import torch

        if is_plain(data):
            return memory_of(data)
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
            return memory_of(target.view(data.dtype).view(data.shape).copy_(data))


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


def narrow(tensor: torch.Tensor, begin: tuple[int, ...], lengths: tuple[int, ...]) -> torch.Tensor:
    """A box of the tensor, as a view."""
    for axis, (start, length) in enumerate(zip(begin, lengths)):
        tensor = tensor.narrow(axis, start, length)
    return tensor


def dtype_of(name: str) -> Any:
    """torch.float32 for "torch.float32". None if this torch does not have it."""
    import torch

    dtype = getattr(torch, name.rpartition(".")[2], None)
    return dtype if isinstance(dtype, torch.dtype) else None
