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


def values_in(value: Any) -> Iterator[Any]:
    """What nested dicts, lists and tuples hold that is none of these."""
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        yield value
        return
    for inner in value:
        yield from values_in(inner)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested dicts, lists and tuples.

    Not those inside other objects, such as ShardedTensor.
    """
    import torch

    for inner in values_in(value):
        if isinstance(inner, torch.Tensor) and not hasattr(inner, "local_shards"):
            yield inner


def devices_of(tensors: Iterable[torch.Tensor]) -> set[torch.device]:
    """The devices that must be waited for."""
    return {tensor.device for tensor in tensors if tensor.is_cuda}


def wait_for(devices: Iterable[torch.device]) -> None:
    """Returns when all that was launched on any stream of these devices has finished."""
    import torch

    for device in devices:
        torch.cuda.synchronize(device)
