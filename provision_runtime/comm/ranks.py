"""The ranks of a job, as training code and the smoke test hand them to `fs`, `checkpoint` and `ddp_check`.

Owns two ways for ranks to tell each other something: through a torch store, which works while a collective hangs, and
through a process group. What is said must be what JSON can hold: no pickle, and no numpy, which an environment may lack.
"""

from __future__ import annotations

import ctypes
import json
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from .store import Meeting

TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Ranks:
    """This rank, and how it meets the others.

    `exchange(name, payload)` returns every rank's payload, in rank order, on every rank, and raises where a rank is
    missing. All ranks call it in the same order. uses_collectives: it may only be called where the training itself calls
    collectives, not in a thread beside it.
    """

    rank: int
    world_size: int
    exchange: Callable[[str, Any], list[Any]]
    uses_collectives: bool = False


def alone() -> Ranks:
    """One process without others: the same code then runs without torch.distributed."""
    return Ranks(0, 1, lambda name, payload: [json.loads(json.dumps(payload))])


def through_store(
    store: Any,
    rank: int,
    world_size: int,
    timeout_s: float = TIMEOUT_S,
    prefix: str = "provision/ranks",
) -> Ranks:
    """Ranks that meet through a torch store (TCPStore, FileStore, PrefixStore...).

    A rank that does not come is named on all others after `timeout_s` (`RanksMissing`). Make it once per store and
    prefix, on every rank: meetings are counted from there. A store lets one thread in at a time: for a thread of its own, pass a
    store of its own (a second TCPStore client).
    """
    from torch.distributed import PrefixStore

    from .store import Mailbox, Meeting

    meeting = Meeting(Mailbox(PrefixStore(prefix, store)), rank, world_size)
    return Ranks(rank, world_size, lambda name, payload: meeting.exchange(name, payload, timeout_s))


def of_default_group(timeout_s: float = TIMEOUT_S) -> Ranks:
    """Ranks of the default process group, which meet through its store; one rank alone where there is no group.

    All ranks must call it, and use what it returns, in the same order, and in one thread at a time: meetings are counted per group.
    They have a connection of their own where the store is a TCPStore, so they go on while another thread waits in the store.
    """
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return alone()
    group = _default_group()
    return Ranks(
        group.rank, group.world_size, lambda name, payload: group.exchange(name, payload, timeout_s)
    )


class _Group:
    """The ranks of one process group, as long as it is the default one. The store is not held: with it goes the server's port."""

    def __init__(self, store: Any, rank: int, world_size: int) -> None:
        self.store = weakref.ref(store)
        self.rank = rank
        self.world_size = world_size
        self._meeting: Meeting | None = None

    def exchange(self, name: str, payload: Any, timeout_s: float) -> list[Any]:
        if self._meeting is None:
            self._meeting = self._first_meeting(timeout_s)
        return self._meeting.exchange(name, payload, timeout_s)

    def _first_meeting(self, timeout_s: float) -> Meeting:
        """A group that is made anew may find the keys of the one before in its store, and processes may have been in different
        numbers of groups, so the name for the keys is agreed upon."""
        from torch.distributed import PrefixStore

        from .store import Mailbox, Meeting, introduce

        store = self.store()
        if store is None:
            raise RuntimeError("the process group of these ranks was destroyed")
        name = introduce(
            Mailbox(PrefixStore("provision/ranks", store)), self.rank, self.world_size, timeout_s
        )
        own = PrefixStore(f"provision/ranks/{name}", _second_connection(store))
        return Meeting(Mailbox(own), self.rank, self.world_size)


_default: _Group | None = None


def _default_group() -> _Group:
    global _default
    from torch import distributed
    from torch.distributed import distributed_c10d

    store = distributed_c10d._get_default_store()
    if _default is None or _default.store() is not store:
        _default = _Group(store, distributed.get_rank(), distributed.get_world_size())
    return _default


def _second_connection(store: Any) -> Any:
    """To the same server, without prefixes: a TCPStore lets one thread in at a time, and keeps the others out for as long as that one
    waits for a key (seen on 1.13, 2.3 and 2.13). Other kinds of stores are returned as they are."""
    from torch.distributed import TCPStore

    server = store
    while not isinstance(server, TCPStore) and hasattr(server, "underlying_store"):
        server = server.underlying_store
    if not isinstance(server, TCPStore):
        return store
    form = {"use_libuv": server.libuvBackend} if hasattr(server, "libuvBackend") else {}
    return TCPStore(
        server.host,
        server.port,
        is_master=False,
        timeout=server.timeout,
        wait_for_workers=False,
        **form,
    )


def through_group(group: Any = None) -> Ranks:
    """Ranks of a process group (the default one): two all-gathers per meeting, with the group's own time-out.

    The name of the meeting is sent along: ranks that are at different ones raise, instead of mixing up what they say. Where a collective
    fails, `exchange` raises GroupBroken.
    """
    from torch import distributed

    from .store import GroupBroken

    rank, world_size = distributed.get_rank(group), distributed.get_world_size(group)

    def exchange(name: str, payload: Any) -> list[Any]:
        try:
            parts = _all_gather(json.dumps([name, payload]).encode(), world_size, group)
        except RuntimeError as error:  # torch's own are children of it
            raise GroupBroken(f"a collective failed at {name}: {error}") from error
        said = [json.loads(text) for text in parts]
        if any(other != name for other, _ in said):
            names = ", ".join(f"rank {place} at {other!r}" for place, (other, _) in enumerate(said))
            raise RuntimeError(f"the ranks are not at the same meeting: {names}")
        return [what for _, what in said]

    return Ranks(rank, world_size, exchange, uses_collectives=True)


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

    return (
        torch.device("cuda", torch.cuda.current_device())
        if backend == "nccl"
        else torch.device("cpu")
    )


def _bytes_of(part: torch.Tensor) -> bytes:
    held = part.cpu().contiguous()
    return ctypes.string_at(held.data_ptr(), held.numel())
