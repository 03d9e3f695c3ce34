"""Several at a time."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar, cast

AT_ONCE = 8  # connections; more make one mirror slower, not faster
T = TypeVar("T")
R = TypeVar("R")


def in_parallel(work: Callable[[T], R], items: Sequence[T]) -> Iterator[tuple[T, R]]:
    """Each item with what became of it, as they come; several at a time. What a worker raises is raised here, and ends it all.

    The workers are daemons: whoever is waiting for a silent server when Ctrl-C comes is not waited for.
    """
    waiting: queue.SimpleQueue[T | None] = queue.SimpleQueue()
    ready: queue.SimpleQueue[tuple[T, R | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        while (item := waiting.get()) is not None:
            try:
                ready.put((item, work(item), None))
            except BaseException as error:
                ready.put((item, None, error))

    for item in items:
        waiting.put(item)
    workers = [threading.Thread(target=run, daemon=True) for _ in range(min(AT_ONCE, len(items)))]
    for worker in workers:
        waiting.put(None)
        worker.start()
    try:
        for _ in items:
            item, result, error = ready.get()
            if error is not None:
                raise error
            yield item, cast("R", result)
    finally:
        with contextlib.suppress(queue.Empty):
            while waiting.get_nowait() is not None:
                pass
        for _ in workers:
            waiting.put(None)
