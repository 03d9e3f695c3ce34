"""GPUs work on several streams at once, and know no order between them.

Which one is current is each thread's own: what the threads here copy is queued on the default stream, which waits for none of those that
training made with torch.cuda.Stream. So before anything is read or written, all that was launched is waited for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import torch


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Those in dicts, lists and tuples, however deep; what other objects hold, ShardedTensors among them, cannot be seen."""
    import torch

    if isinstance(value, torch.Tensor) and not hasattr(value, "local_shards"):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_in(inner)


def of(tensors: Iterable[torch.Tensor]) -> set[torch.device]:
    """The devices that must be waited for."""
    return {tensor.device for tensor in tensors if tensor.is_cuda}


def wait_for(devices: Iterable[torch.device]) -> None:
    """Until all that was launched on any of their streams is done."""
    import torch

    for device in devices:
        torch.cuda.synchronize(device)
