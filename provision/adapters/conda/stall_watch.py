"""Watching rattler fetch: it waits for ever on a server that has fallen silent (py-rattler 0.28: tried), so we do not."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

from provision.adapters.http import SLOWEST_BYTES_PER_S, read_timeout_s

CHECK_S = 0.2
LEAST_S = 2.0  # between two tries of its own rattler is silent for as long
SETTLE_S = 0.5  # for what rattler's threads have begun when a transaction is given up


class Stalled(Exception):
    """Nothing came for too long."""


class Watched:
    """rattler's reporter. It calls from its own threads, and only the methods that are there; a number that a method returns comes
    back as that download's."""

    def __init__(
        self, linked: Callable[[int], None], linking: Callable[[str], None] = lambda package: None
    ) -> None:
        """linked: told how many packages are linked, each time one more is. linking: told which package is linked next."""
        self._told, self._count, self._linking = linked, 0, linking
        self._lock = threading.Lock()
        self._names: dict[int, str] = {}
        self._running: dict[int, int] = {}  # download -> bytes so far
        self._since, self._came = time.monotonic(), 0

    def on_populate_cache_start(self, operation: int, package_name: str) -> int:
        with self._lock:
            self._names[operation] = package_name
        return operation

    def on_download_start(self, cache_entry: int) -> int:
        with self._lock:
            if not self._running:
                self._since, self._came = time.monotonic(), 0
            self._running[cache_entry] = 0
        return cache_entry

    def on_download_progress(self, download_idx: int, progress: int, total: int | None) -> None:
        with self._lock:
            self._came += max(0, progress - self._running.get(download_idx, 0))
            self._running[download_idx] = progress

    def on_download_completed(self, download_idx: int) -> None:
        with self._lock:
            self._running.pop(download_idx, None)

    def on_link_start(self, operation: int, package_name: str) -> int:
        self._linking(package_name)
        return operation

    def on_link_complete(self, index: int) -> None:
        with self._lock:
            self._count += 1
        self._told(self._count)

    def silent(self, window_s: float) -> str:
        """The packages that are being downloaded, if that brought next to nothing for so long."""
        with self._lock:
            passed = time.monotonic() - self._since
            if not self._running or passed < window_s:
                return ""
            slow = self._came < SLOWEST_BYTES_PER_S * passed
            self._since, self._came = time.monotonic(), 0
            return (
                ", ".join(sorted(self._names.get(number, "a package") for number in self._running))
                if slow
                else ""
            )


async def watched(work: Coroutine[Any, Any, None], watch: Watched) -> None:
    """Await rattler's work, or raise Stalled."""
    import asyncio  # as calls.py has it

    window_s = max(read_timeout_s(), LEAST_S)
    task = asyncio.ensure_future(work)
    while not (await asyncio.wait({task}, timeout=CHECK_S))[0]:
        if names := watch.silent(window_s):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
            await asyncio.sleep(SETTLE_S)
            raise Stalled(f"{names}: the server was silent for {window_s:.0f} s")
    task.result()
