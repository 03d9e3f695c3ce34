"""Waiting for GPUs: they work on several streams at once, in no order between them.

Which stream is current is per thread: what the threads here copy is queued on the default stream,
which does not wait for streams that training made with torch.cuda.Stream. So all launched work is
waited for before anything is read or written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch


def devices_of(tensors: Iterable[torch.Tensor]) -> set[torch.device]:
    """The devices that must be waited for."""
    return {tensor.device for tensor in tensors if tensor.is_cuda}


def wait_for(devices: Iterable[torch.device]) -> None:
    """Returns when all that was launched on any stream of these devices has finished."""
    import torch

    for device in devices:
        torch.cuda.synchronize(device)
