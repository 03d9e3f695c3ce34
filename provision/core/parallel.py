"""Work on all cores whose results keep the order of their inputs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from provision.core.host import usable_cpus

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_in_order(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """The results in order, with few inputs in memory, by a thread for each CPU that this process may
    use. For functions that release the GIL."""
    count = usable_cpus()
    pending: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(count) as pool:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > count:
                yield pending.popleft().result()
        for future in pending:
            yield future.result()
