"""Ends downloads of rattler that stall: it waits for ever on a server that has fallen silent
(py-rattler 0.28: tried)."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

from provision.adapters.http import SLOWEST_BYTES_PER_S, read_timeout_s

CHECK_S = 0.2
LEAST_WINDOW_S = 2.0  # between two of its own retries rattler is silent for as long
SETTLE_S = 0.5  # for what rattler's threads have begun when a transaction is given up


class Stalled(Exception):
    """Nothing came for too long."""


class DownloadMonitor:
    """rattler's reporter. rattler calls it from its own threads, and only the methods that exist; a
    number that a method returns identifies that download in later calls."""

    def __init__(
        self,
        on_linked: Callable[[int], None],
        before_link: Callable[[str], None] = lambda name: None,
    ) -> None:
        """on_linked: gets the number of packages linked so far. before_link: gets the name of the
        package linked next."""
        self._on_linked, self._before_link = on_linked, before_link
        self._linked = 0
        self._lock = threading.Lock()
        self._names: dict[int, str] = {}
        self._received: dict[int, int] = {}  # by running download
        self._start_window()

    def _start_window(self) -> None:
        self._window_start, self._window_bytes = time.monotonic(), 0

    def on_populate_cache_start(self, operation: int, package_name: str) -> int:
        with self._lock:
            self._names[operation] = package_name
        return operation

    def on_download_start(self, cache_entry: int) -> int:
        with self._lock:
            if not self._received:
                self._start_window()
            self._received[cache_entry] = 0
        return cache_entry

    def on_download_progress(self, download_idx: int, progress: int, total: int | None) -> None:
        with self._lock:
            self._window_bytes += max(0, progress - self._received.get(download_idx, 0))
            self._received[download_idx] = progress

    def on_download_completed(self, download_idx: int) -> None:
        with self._lock:
            self._received.pop(download_idx, None)

    def on_link_start(self, operation: int, package_name: str) -> int:
        self._before_link(package_name)
        return operation

    def on_link_complete(self, index: int) -> None:
        with self._lock:
            self._linked += 1
        self._on_linked(self._linked)

    def stalled_packages(self, window_s: float) -> str:
        """The packages being downloaded, if the past window brought next to nothing; else an empty
        text."""
        with self._lock:
            passed_s = time.monotonic() - self._window_start
            if not self._received or passed_s < window_s:
                return ""
            is_stalled = self._window_bytes < SLOWEST_BYTES_PER_S * passed_s
            self._start_window()
            if not is_stalled:
                return ""
            return ", ".join(
                sorted(self._names.get(entry, "a package") for entry in self._received)
            )


async def await_progress(work: Coroutine[Any, Any, None], monitor: DownloadMonitor) -> None:
    """Await rattler's work. Raises Stalled."""
    import asyncio  # only here, as in calls.py

    window_s = max(read_timeout_s(), LEAST_WINDOW_S)
    task = asyncio.ensure_future(work)
    while not (await asyncio.wait({task}, timeout=CHECK_S))[0]:
        if names := monitor.stalled_packages(window_s):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
            await asyncio.sleep(SETTLE_S)
            raise Stalled(f"{names}: the server was silent for {window_s:.0f} s")
    task.result()
