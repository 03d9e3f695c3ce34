"""GPUs work on several streams at once, and know no order between them.

Which one is current is each thread's own: what the threads here copy is queued on the default stream, which waits for none of those that
training made with torch.cuda.Stream. So before anything is read or written, all that was launched is waited for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch


def of(tensors: Iterable[torch.Tensor]) -> set[torch.device]:
    """The devices that must be waited for."""
    return {tensor.device for tensor in tensors if tensor.is_cuda}


def wait_for(devices: Iterable[torch.device]) -> None:
    """Until all that was launched on any of their streams is done."""
    import torch

    for device in devices:
        torch.cuda.synchronize(device)
