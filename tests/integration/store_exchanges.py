"""Run by an interpreter that has torch (test_comm_ranks): ranks as threads of one process exchange values through real stores."""

from __future__ import annotations

import gc
import json
import os
import tempfile
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch import distributed

from provision_runtime.comm import ranks
from provision_runtime.comm import store as comm_store

warnings.simplefilter("ignore")
RANKS, EXCHANGES = 3, 40
PATIENCE = timedelta(seconds=60)
FOLDER = Path(tempfile.mkdtemp())


def tcp_stores() -> list[Any]:
    """One with the server, and clients."""
    server = distributed.TCPStore(
        "127.0.0.1", 0, is_master=True, timeout=PATIENCE, wait_for_workers=False
    )
    clients = [
        distributed.TCPStore("127.0.0.1", server.port, is_master=False, timeout=PATIENCE)
        for _ in range(RANKS - 1)
    ]
    return [server, *clients]


def stores() -> dict[str, list[Any]]:
    """Of each kind, one per rank."""
    shared = distributed.HashStore()
    plain = {
        "tcp": tcp_stores(),
        "file": [distributed.FileStore(str(FOLDER / "store"), RANKS) for _ in range(RANKS)],
        "hash": [shared] * RANKS,
    }
    inner = [distributed.PrefixStore("inner", store) for store in tcp_stores()]
    return {**plain, "prefix": [distributed.PrefixStore("outer", store) for store in inner]}


def on_all_ranks(work: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(RANKS) as pool:
        return list(pool.map(work, range(RANKS)))


def left_by_exchanges(stores_by_rank: list[Any]) -> int:
    """How many more keys there are after many exchanges than after two."""
    job = [ranks.through_store(store, rank, RANKS, 60) for rank, store in enumerate(stores_by_rank)]

    def exchange(rank: int) -> None:
        assert job[rank].exchange("meet", rank) == list(range(RANKS))

    for _ in range(2):
        on_all_ranks(exchange)
    before: int = stores_by_rank[0].num_keys()
    for _ in range(EXCHANGES):
        on_all_ranks(exchange)
    return int(stores_by_rank[0].num_keys()) - before


def negotiated_names(stores_by_rank: list[Any]) -> list[list[str]]:
    """Names that ranks negotiate, again and again in one store, which keeps the keys of the earlier ones."""
    clients = [comm_store.StoreClient(store) for store in stores_by_rank]
    return [
        on_all_ranks(lambda rank: comm_store.negotiate_nonce(clients[rank], rank, RANKS, 60))
        for _ in range(3)
    ]


class UndeletableStore:
    """A kind of store that cannot delete keys."""

    def __init__(self, store: Any) -> None:
        self.set, self.get, self.tried = store.set, store.get, 0
        if hasattr(store, "check"):
            self.check = store.check
        self.compare_set = store.compare_set

    def delete_key(self, key: str) -> None:
        self.tried += 1
        raise RuntimeError("not implemented")


def where_nothing_can_be_deleted() -> Any:
    store = UndeletableStore(distributed.HashStore())
    all_gather = comm_store.StoreAllGather(comm_store.StoreClient(store), 0, 1)
    return [[all_gather.exchange("meet", number, 60) for number in range(3)], store.tried]


def long_values() -> list[Any]:
    """More than torch's server takes at once (8 MiB since 2.4), from every rank; and what is left of it afterwards."""
    return [
        long_values_in(stores_by_rank)
        for stores_by_rank in (tcp_stores(), [distributed.HashStore()] * RANKS)
    ]


def long_values_in(stores_by_rank: list[Any]) -> list[bool]:
    job = [ranks.through_store(store, rank, RANKS, 60) for rank, store in enumerate(stores_by_rank)]
    values = ["\u00e9" * (3 << 20), "short", ""]
    gathered = on_all_ranks(lambda rank: job[rank].exchange("long", values[rank]))
    before = stores_by_rank[0].num_keys()
    on_all_ranks(lambda rank: job[rank].exchange("short", rank))
    return [
        gathered == [values] * RANKS,
        before > 2 * RANKS,
        stores_by_rank[0].num_keys() <= 2 * RANKS,
    ]


def groups_in_turn(port: int) -> list[Any]:
    """Three default groups in one process, at one port, with keys of other ranks in their way."""
    gathered = []
    for number in range(3):
        distributed.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1
        )
        job = ranks.of_default_group(60)
        gathered.append(job.exchange("meet", number))
        distributed.destroy_process_group()
        gc.collect()
    return gathered


def is_occupied(server: Any) -> bool:
    """Whether the store keeps this thread's question waiting."""
    asking = threading.Thread(target=server.num_keys)
    asking.start()
    asking.join(0.3)
    return asking.is_alive()


def with_a_waiting_thread(port: int) -> str:
    """An exchange while another thread waits in the group's store."""
    distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1
    )
    store = distributed.distributed_c10d._get_default_store()
    job = ranks.of_default_group(60)
    job.exchange("first", None)

    server = store
    while hasattr(server, "underlying_store"):
        server = server.underlying_store

    def wait() -> None:
        with suppress(Exception):  # set below, when the ranks have met
            server.wait(["met"], timedelta(seconds=8))

    waiting = threading.Thread(target=wait)
    waiting.start()
    while waiting.is_alive() and not is_occupied(server):
        pass
    job.exchange("second", None)
    result = (
        "met while the other waited" if waiting.is_alive() else "met when the other had given up"
    )
    ranks._second_connection(store).set("met", "")
    waiting.join()
    distributed.destroy_process_group()
    return result


def main() -> dict[str, Any]:
    from provision_runtime.comm.addresses import free_port

    return {
        "left": {
            kind: left_by_exchanges(stores_by_rank) for kind, stores_by_rank in stores().items()
        },
        "introduced": {
            kind: negotiated_names(stores_by_rank) for kind, stores_by_rank in stores().items()
        },
        "long": long_values(),
        "keeping": where_nothing_can_be_deleted(),
        "groups": groups_in_turn(free_port()),
        "beside": with_a_waiting_thread(free_port()),
    }


if __name__ == "__main__":
    print("found", json.dumps(main()), flush=True)
    os._exit(0)  # without the destructors of stores whose server went first
