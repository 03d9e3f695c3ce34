"""Ranks as threads of this process. Payloads go through JSON, as they do in a store."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from provision_runtime.comm.ranks import Ranks


class RankThreads:
    def __init__(self, world_size: int) -> None:
        self._barrier = threading.Barrier(world_size, timeout=30)
        self._payloads: dict[int, str] = {}
        self.world_size = world_size

    def ranks(self, rank: int) -> Ranks:
        def exchange(name: str, payload: Any) -> list[Any]:
            self._payloads[rank] = json.dumps({"name": name, "payload": payload})
            self._barrier.wait()
            entries = [json.loads(self._payloads[other]) for other in range(self.world_size)]
            self._barrier.wait()
            assert {entry["name"] for entry in entries} == {name}
            return [entry["payload"] for entry in entries]

        return Ranks(rank, self.world_size, exchange)

    def run(self, work: Callable[[Ranks], Any]) -> list[Any]:
        """What each rank's work returned or raised."""
        results: list[Any] = [None] * self.world_size

        def run_rank(rank: int) -> None:
            try:
                results[rank] = work(self.ranks(rank))
            except Exception as error:  # the error is the result
                results[rank] = error

        threads = [
            threading.Thread(target=run_rank, args=(rank,)) for rank in range(self.world_size)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return results
