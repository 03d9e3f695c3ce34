"""What `save_async` needs: one save at a time in the background, and a copy of the state in host
memory.

The memory is reused by the next save, because memory that is already allocated costs no page faults.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from . import streams
from .items import BoxKey, Item, pieces
from .memory import is_plain
from .writer import hashing_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch


T = TypeVar("T")


# The thread


class SaveFuture(Future, Generic[T]):  # type: ignore[type-arg]
    """A future that knows whether its outcome was checked."""

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

        Warns if it failed and its outcome was not checked: a lost checkpoint must not go unnoticed.
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


# The copy


class HostSnapshot:
    """Call `take` only when no save reads the copy."""

    def __init__(self) -> None:
        self._memory: dict[BoxKey, torch.Tensor] = {}

    def take(self, items: Sequence[Item]) -> list[Item]:
        """The same items, on the copy.

        Raises MemoryError or RuntimeError (torch's) if host memory is too small.
        """
        import torch

        tensors = {item.box_key: item for item in items if not item.is_object}
        devices = streams.devices_of(item.data for item in tensors.values())
        # Frees memory that does not fit, and allocates what is missing.
        self._memory = {
            key: memory
            for key, memory in self._memory.items()
            if key in tensors and _fits(memory, tensors[key])
        }
        copies = {}
        for key, item in tensors.items():
            if key not in self._memory:
                self._memory[key] = _allocate(item)
            copies[key] = replace(item, data=self._memory[key])
        streams.wait_for(devices)
        sources: list[Item] = []
        targets: list[Item] = []
        with torch.no_grad():
            for key, item in tensors.items():
                if is_plain(item.data):
                    sources += pieces(item)
                    targets += pieces(copies[key])
                else:
                    copies[key].data.copy_(item.data, non_blocking=True)
        with ThreadPoolExecutor(hashing_threads(), thread_name_prefix="provision-snapshot") as pool:
            list(pool.map(_copy_memory, sources, targets))
        streams.wait_for(devices)
        return [copies.get(item.box_key, item) for item in items]


def _fits(memory: torch.Tensor, item: Item) -> bool:
    has_same_type: bool = memory.shape == item.data.shape and memory.dtype == item.data.dtype
    return has_same_type and memory.is_pinned() == bool(item.data.is_cuda)


def _allocate(item: Item) -> torch.Tensor:
    """Pinned if a GPU is to write it: only then do its copies run in parallel and at the rate of
    the bus.

    It is written again outside of the caller's modes, so it must be neither on the caller's default
    device nor an inference tensor.
    """
    import torch

    with torch.inference_mode(False):
        return torch.empty(
            item.data.shape, dtype=item.data.dtype, device="cpu", pin_memory=item.data.is_cuda
        )


def _copy_memory(source: Item, target: Item) -> None:
    ctypes.memmove(target.data.data_ptr(), source.data.data_ptr(), source.bytes)
