"""The ranks of a job, as training code and the smoke test pass them to `fs`, `checkpoint` and
`ddp_check`.

Ranks exchange values through a torch store, which works while a collective hangs. A payload is a
JSON value: no pickle, and no numpy, which an environment may lack.
"""

from __future__ import annotations

import json
import weakref
from typing import TYPE_CHECKING, Any

from ..dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Callable

    from .store import StoreAllGather

__all__ = ["Ranks", "of_default_group", "single_process", "through_store"]

TIMEOUT_S = 300.0


@frozen
class Ranks:
    """This rank, and how it exchanges values with the others.

    Attributes:
        rank: This rank, from 0.
        world_size: How many ranks there are.
        exchange: `exchange(name, payload)` returns every rank's payload, in rank order, on every
            rank, and raises when a rank is missing. A payload is a JSON value. All ranks call it in
            the same order.
    """

    rank: int
    world_size: int
    exchange: Callable[[str, Any], list[Any]]


def single_process() -> Ranks:
    """A single process, so that the same code runs without torch.distributed.

    Returns:
        Rank 0 of 1.
    """
    return Ranks(0, 1, lambda name, payload: [json.loads(json.dumps(payload))])


def through_store(
    store: Any,
    rank: int,
    world_size: int,
    timeout_s: float = TIMEOUT_S,
    prefix: str = "provision/ranks",
) -> Ranks:
    """Ranks that exchange values through a torch store (TCPStore, FileStore, PrefixStore...).

    Call this once per store and prefix, on every rank: it starts the count of exchanges. A store
    serves one thread at a time: a second thread needs its own store (a second TCPStore client).

    Args:
        store: The store, which all ranks have.
        rank: This rank, from 0.
        world_size: How many ranks there are.
        timeout_s: Seconds that a rank may be silent. Then the exchange raises RanksMissing on all
            others, with its name.
        prefix: What the keys in the store begin with.

    Returns:
        This rank.
    """
    from torch.distributed import PrefixStore

    from .store import StoreAllGather, StoreClient

    all_gather = StoreAllGather(StoreClient(PrefixStore(prefix, store)), rank, world_size)

    def exchange(name: str, payload: Any) -> list[Any]:
        return all_gather.exchange(name, payload, timeout_s)

    return Ranks(rank, world_size, exchange)


def of_default_group(timeout_s: float = TIMEOUT_S, channel: str = "") -> Ranks:
    """Ranks of the default process group, through its store.

    All ranks must call it, and use the result, in the same order and in one thread at a time:
    exchanges are counted per group and channel. A TCPStore gets a second connection, so exchanges work
    while another thread waits in the store.

    Args:
        timeout_s: Seconds that a rank may be silent, as for through_store.
        channel: Separates the exchanges of one thread from those of another.

    Returns:
        This rank; a single process if there is no process group.
    """
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return single_process()
    group = _default_group(channel)

    def exchange(name: str, payload: Any) -> list[Any]:
        return group.exchange(name, payload, timeout_s)

    return Ranks(group.rank, group.world_size, exchange)


class _Group:
    """One channel of the ranks of a process group while it is the default one.

    References the store weakly: a store that stays alive keeps the server's port.
    """

    def __init__(self, store: Any, rank: int, world_size: int, channel: str) -> None:
        self._prefix = f"provision/ranks/{channel}" if channel else "provision/ranks"
        self.store = weakref.ref(store)
        self.rank = rank
        self.world_size = world_size
        self._all_gather: StoreAllGather | None = None

    def exchange(self, name: str, payload: Any, timeout_s: float) -> list[Any]:
        if self._all_gather is None:
            self._all_gather = self._connect(timeout_s)
        return self._all_gather.exchange(name, payload, timeout_s)

    def _connect(self, timeout_s: float) -> StoreAllGather:
        """The ranks agree on a new prefix for their keys first.

        The store may hold keys of an earlier group, and processes may have been in different
        numbers of groups.
        """
        from torch.distributed import PrefixStore

        from .store import StoreAllGather, StoreClient, negotiate_nonce

        store = self.store()
        if store is None:
            raise RuntimeError("the process group of these ranks was destroyed")
        client = StoreClient(PrefixStore(self._prefix, store))
        nonce = negotiate_nonce(client, self.rank, self.world_size, timeout_s)
        group_store = PrefixStore(f"{self._prefix}/{nonce}", _second_connection(store))
        return StoreAllGather(StoreClient(group_store), self.rank, self.world_size)


# By channel.
_default: dict[str, _Group] = {}


def _default_group(channel: str) -> _Group:
    from torch import distributed
    from torch.distributed import distributed_c10d

    store = distributed_c10d._get_default_store()
    group = _default.get(channel)
    if group is None or group.store() is not store:
        rank, world_size = distributed.get_rank(), distributed.get_world_size()
        group = _default[channel] = _Group(store, rank, world_size, channel)
    return group


def _second_connection(store: Any) -> Any:
    """A second connection to the same server, without prefixes. Other kinds of stores are returned
    unchanged.

    A TCPStore serves one thread at a time, and blocks the others for as long as that one waits for
    a key (seen on 1.13, 2.3 and 2.13).
    """
    from torch.distributed import TCPStore

    server = store
    while not isinstance(server, TCPStore) and hasattr(server, "underlying_store"):
        server = server.underlying_store
    if not isinstance(server, TCPStore):
        return store
    options = {}
    if hasattr(server, "libuvBackend"):
        options["use_libuv"] = server.libuvBackend
    return TCPStore(
        server.host,
        server.port,
        is_master=False,
        timeout=server.timeout,
        wait_for_workers=False,
        **options,
    )
