"""Waiting for GPUs: they work on several streams at once, in no order between them.

Which stream is current is per thread: what the threads here copy is queued on the default stream,
which does not wait for streams that training made with torch.cuda.Stream. So all launched work is
waited for before anything is read or written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import torch


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested dicts, lists and tuples.

    Not those inside other objects, such as ShardedTensor.
    """
    import torch

    if isinstance(value, torch.Tensor) and not hasattr(value, "local_shards"):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from tensors_in(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from tensors_in(inner)


def devices_of(tensors: Iterable[torch.Tensor]) -> set[torch.device]:
    """The devices that must be waited for."""
    return {tensor.device for tensor in tensors if tensor.is_cuda}


def wait_for(devices: Iterable[torch.device]) -> None:
    """Returns when all that was launched on any stream of these devices has finished."""
    import torch

    for device in devices:
        torch.cuda.synchronize(device)
