"""Ranks as threads of this process, meeting at a barrier; what they say goes through JSON, as in a store."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from provision_runtime.comm.ranks import Ranks


class Table:
    def __init__(self, world_size: int) -> None:
        self._barrier = threading.Barrier(world_size, timeout=30)
        self._said: dict[int, Any] = {}
        self.world_size = world_size

    def ranks(self, rank: int) -> Ranks:
        def exchange(name: str, payload: Any) -> list[Any]:
            self._said[rank] = json.dumps({"name": name, "payload": payload})
            self._barrier.wait()
            said = [json.loads(self._said[other]) for other in range(self.world_size)]
            self._barrier.wait()
            assert {entry["name"] for entry in said} == {name}
            return [entry["payload"] for entry in said]

        return Ranks(rank, self.world_size, exchange)

    def run(self, work: Callable[[Ranks], Any]) -> list[Any]:
        """What each rank's work returned or raised."""
        results: list[Any] = [None] * self.world_size

        def one(rank: int) -> None:
            try:
                results[rank] = work(self.ranks(rank))
            except Exception as error:  # the error is the result
                results[rank] = error

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.world_size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return results
