"""The ranks of a job, as training code and the smoke test hand them to `fs`, `checkpoint` and `ddp_check`.

Owns two ways for ranks to tell each other something: through a torch store, which works while a collective hangs, and
through a process group. What is said must be what JSON can hold: no pickle, and no numpy, which an environment may lack.
"""

from __future__ import annotations

import ctypes
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Ranks:
    """This rank, and how it meets the others.

    `exchange(name, payload)` returns every rank's payload, in rank order, on every rank, and raises where a rank is
    missing. All ranks call it in the same order.
    """

    rank: int
    world_size: int
    exchange: Callable[[str, Any], list[Any]]


def alone() -> Ranks:
    """One process without others: the same code then runs without torch.distributed."""
    return Ranks(0, 1, lambda name, payload: [json.loads(json.dumps(payload))])


def through_store(store: Any, rank: int, world_size: int, timeout_s: float = TIMEOUT_S, prefix: str = "provision/ranks") -> Ranks:
    """Ranks that meet through a torch store (TCPStore, FileStore, PrefixStore...).

    A rank that does not come is named on all others after `timeout_s` (`RanksMissing`). Make it once per store and
    prefix, on every rank: meetings are counted from there.
    """
    from torch.distributed import PrefixStore

    from .smoke.meeting import Mailbox, Meeting

    meeting = Meeting(Mailbox(PrefixStore(prefix, store)), rank, world_size)
    return Ranks(rank, world_size, lambda name, payload: meeting.exchange(name, payload, timeout_s))


def of_default_group(timeout_s: float = TIMEOUT_S) -> Ranks:
    """Ranks of the default process group, which meet through its store; one rank alone where there is no group.

    All ranks must call it, and use what it returns, in the same order: meetings are counted per store.
    """
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return alone()
    meeting, rank, world_size = _default_meeting()
    return Ranks(rank, world_size, lambda name, payload: meeting.exchange(name, payload, timeout_s))


# The store of the default group, how many such this process has had, and the meeting in it.
_default: tuple[Any, int, Any] = (None, 0, None)


def _default_meeting() -> tuple[Any, int, int]:
    global _default
    from torch import distributed
    from torch.distributed import PrefixStore, distributed_c10d

    from .smoke.meeting import Mailbox, Meeting

    store = distributed_c10d._get_default_store()
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    if _default[0] is not store:
        count = _default[1] + 1  # a group that is made anew may have the keys of the old one in its store
        _default = (store, count, Meeting(Mailbox(PrefixStore(f"provision/ranks/{count}", store)), rank, world_size))
    return _default[2], rank, world_size


def through_group(group: Any = None) -> Ranks:
    """Ranks of a process group (the default one): two all-gathers per meeting, with the group's own time-out.

    The name of the meeting is sent along: ranks that are at different ones raise, instead of mixing up what they say.
    """
    from torch import distributed

    rank, world_size = distributed.get_rank(group), distributed.get_world_size(group)

    def exchange(name: str, payload: Any) -> list[Any]:
        said = [json.loads(text) for text in _all_gather(json.dumps([name, payload]).encode(), world_size, group)]
        if any(other != name for other, _ in said):
            names = ", ".join(f"rank {place} at {other!r}" for place, (other, _) in enumerate(said))
            raise RuntimeError(f"the ranks are not at the same meeting: {names}")
        return [what for _, what in said]

    return Ranks(rank, world_size, exchange)


def _all_gather(content: bytes, world_size: int, group: Any) -> list[bytes]:
    import torch
    from torch import distributed

    device = _device(distributed.get_backend(group))
    own_size = torch.tensor([len(content)], dtype=torch.int64, device=device)
    sizes = [torch.zeros_like(own_size) for _ in range(world_size)]
    distributed.all_gather(sizes, own_size, group=group)
    most = max(int(size) for size in sizes)
    padded = torch.frombuffer(bytearray(content.ljust(most, b"\0")), dtype=torch.uint8).to(device)
    parts = [torch.empty_like(padded) for _ in range(world_size)]
    distributed.all_gather(parts, padded, group=group)
    return [_bytes_of(part)[: int(size)] for part, size in zip(parts, sizes)]


def _device(backend: str) -> torch.device:
    import torch

    return torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")


def _bytes_of(part: torch.Tensor) -> bytes:
    held = part.cpu().contiguous()
    return ctypes.string_at(held.data_ptr(), held.numel())
