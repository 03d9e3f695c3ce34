"""Work on several items at once, in daemon threads."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar, cast

CONNECTIONS = 8  # more make one mirror slower, not faster
T = TypeVar("T")
R = TypeVar("R")


def in_parallel(work: Callable[[T], R], items: Sequence[T]) -> Iterator[tuple[T, R]]:
    """Each item with its result, in the order in which they finish. An exception of a worker ends
    it all and is raised here.

    The workers are daemons: Ctrl-C does not wait for one that waits for a silent server.
    """
    pending: queue.SimpleQueue[T | None] = queue.SimpleQueue()
    finished: queue.SimpleQueue[tuple[T, R | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        while (item := pending.get()) is not None:
            try:
                finished.put((item, work(item), None))
            except BaseException as error:
                finished.put((item, None, error))

    for item in items:
        pending.put(item)
    threads = min(CONNECTIONS, len(items))
    for _ in range(threads):
        pending.put(None)
        threading.Thread(target=run, daemon=True).start()
    try:
        for _ in items:
            item, result, error = finished.get()
            if error is not None:
                raise error
            yield item, cast("R", result)
    finally:
        # Whoever stops reading early leaves items: drop them, and let every worker end.
        with contextlib.suppress(queue.Empty):
            while pending.get_nowait() is not None:
                pass
        for _ in range(threads):
            pending.put(None)
