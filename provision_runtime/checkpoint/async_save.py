"""One save at a time in the background; the process does not end before it is over."""

from __future__ import annotations

import atexit
import os
import threading
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class SaveFuture(Future, Generic[T]):  # type: ignore[type-arg]
    """A future that knows whether anybody looked at its outcome."""

    was_checked = False

    def result(self, timeout: float | None = None) -> T:
        self.was_checked = True
        result: T = super().result(timeout)
        return result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.was_checked = True
        return super().exception(timeout)

    def cancel(self) -> bool:
        """Never cancels: either all ranks save, or none."""
        return False

    def run(self, action: Callable[[], T]) -> None:
        self.set_running_or_notify_cancel()
        try:
            self.set_result(action())
        except BaseException as error:  # result() raises it
            self.set_exception(error)


class BackgroundSave:
    """Make one per process. A fork has none of its threads, so it starts without a save."""

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._last: SaveFuture[Any] | None = None

    def finish(self) -> None:
        """Waits for a running save.

        Warns if it failed and nobody checked its outcome: a lost checkpoint must not go unnoticed.
        """
        last, self._last = self._last, None
        if last is None:
            return
        was_checked = last.was_checked
        error = last.exception()
        if error is not None and not was_checked:
            warnings.warn(f"a save in the background failed: {error}", stacklevel=4)

    def start(self, action: Callable[[], T]) -> SaveFuture[T]:
        """Starts a save after the one before is over."""
        self.finish()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="provision-checkpoint")
            # `finish` must run while executors still accept work: their own hook, registered when
            # concurrent.futures is imported, forbids it, and hooks run in reverse order. Since
            # Python 3.9 that hook is where only threading._register_atexit comes before it.
            register = getattr(threading, "_register_atexit", atexit.register)
            register(self.finish)
        self._last = future = SaveFuture[T]()
        self._pool.submit(future.run, action)
        return future
