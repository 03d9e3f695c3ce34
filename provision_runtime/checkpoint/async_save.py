"""One save at a time behind the training's back; the process does not end before it is over."""

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


class Result(Future, Generic[T]):  # type: ignore[type-arg]
    """A future that knows whether anybody asked it how it ended."""

    is_asked = False

    def result(self, timeout: float | None = None) -> T:
        self.is_asked = True
        result: T = super().result(timeout)
        return result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.is_asked = True
        return super().exception(timeout)

    def cancel(self) -> bool:
        """Never: all ranks save, or none."""
        return False

    def run(self, action: Callable[[], T]) -> None:
        self.set_running_or_notify_cancel()
        try:
            self.set_result(action())
        except BaseException as error:  # result() raises it
            self.set_exception(error)


class Background:
    """Make one, for the whole process. A fork has none of its threads: what is under way is not its own, and it begins anew."""

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._last: Result[Any] | None = None

    def finish(self) -> None:
        """Wait until what is under way is over. Warns where it failed and nobody asked: a lost checkpoint must not go unnoticed."""
        last, self._last = self._last, None
        if last is None:
            return
        was_asked = last.is_asked
        error = last.exception()
        if error is not None and not was_asked:
            warnings.warn(f"a save in the background failed: {error}", stacklevel=4)

    def start(self, action: Callable[[], T]) -> Result[T]:
        """Once the one before is over."""
        self.finish()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="provision-checkpoint")
            _before_the_end(self.finish)
        self._last = future = Result[T]()
        self._pool.submit(future.run, action)
        return future


def _before_the_end(action: Callable[[], None]) -> None:
    """Have it called when the interpreter ends, while executors still take work: their own hook, at the import of
    concurrent.futures, forbids it, and what is registered later is called earlier. Python 3.9 moved it to where only this reaches."""
    getattr(threading, "_register_atexit", atexit.register)(action)
