"""What `save_async` needs: one save at a time in the background, and a copy of the state in host
memory.

The copy is reused by the next save. Memory that is already allocated costs no page faults. And what
still equals the copy is neither copied nor hashed again: comparing is as fast as copying, and
several times as fast as SHA-256.
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
from .compare import first_difference
from .items import pieces
from .serialize import is_plain
from .writer import hashing_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from .items import Item, Place, SavePlan

T = TypeVar("T")

# Smaller items are copied without comparing: that costs more than hashing them.
MIN_COMPARED_BYTES = 1 << 20


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
    """Call `take` and `learn` one at a time; between the two the copy does not change."""

    def __init__(self) -> None:
        self._memory: dict[Place, torch.Tensor] = {}
        # Of pieces of the copy, as long as their content stays.
        self._digests: dict[Place, str] = {}

    def take(self, plan: SavePlan) -> SavePlan:
        """The same plan, on the copy.

        Raises MemoryError or RuntimeError (torch's) if host memory is too small.
        """
        tensors = {item.place: item for item in plan.items if not item.is_object}
        devices = streams.devices_of(item.data for item in tensors.values())
        # If anything fails below, no digest of the earlier content is left.
        old_digests = self._digests
        self._digests = {}
        new_places = self._make_room(tensors)
        streams.wait_for(devices)
        comparable: list[Item] = []
        others: list[Item] = []
        for item in tensors.values():
            is_comparable = is_plain(item.data) and item.bytes >= MIN_COMPARED_BYTES
            (comparable if is_comparable else others).append(item)
        unchanged = self._update(comparable, new_places)
        self._copy(others)
        streams.wait_for(devices)
        for place in unchanged:
            if place in old_digests:
                self._digests[place] = old_digests[place]
        items = []
        for item in plan.items:
            items.append(item if item.is_object else replace(item, data=self._memory[item.place]))
        return replace(plan, items=tuple(items), digests=dict(self._digests))

    def learn(self, digests: Mapping[Place, str]) -> None:
        """Remembers the digests with which the pieces of the copy were committed."""
        self._digests = dict(digests)

    def _make_room(self, tensors: Mapping[Place, Item]) -> set[Place]:
        """Frees memory that does not fit and allocates what is missing; returns the new places."""
        reusable = {}
        for place, memory in self._memory.items():
            if place in tensors and _fits(memory, tensors[place]):
                reusable[place] = memory
        self._memory = reusable
        new_memory = {}
        for place, item in tensors.items():
            if place not in self._memory:
                new_memory[place] = _allocate(item)
        self._memory.update(new_memory)
        return set(new_memory)

    def _update(self, items: Sequence[Item], new_places: set[Place]) -> set[Place]:
        """Updates the copy. Returns the pieces that were compared and did not differ."""
        sources: list[Item] = []
        targets: list[Item] = []
        are_new: list[bool] = []
        for item in items:
            item_pieces = list(pieces(item))
            sources += item_pieces
            targets += pieces(replace(item, data=self._memory[item.place]))
            are_new += [item.place in new_places] * len(item_pieces)
        with ThreadPoolExecutor(hashing_threads(), thread_name_prefix="provision-snapshot") as pool:
            were_equal = list(pool.map(_update_piece, sources, targets, are_new))
        return {piece.place for piece, was_equal in zip(sources, were_equal) if was_equal}

    def _copy(self, items: Sequence[Item]) -> None:
        import torch

        with torch.no_grad():
            for item in items:
                self._memory[item.place].copy_(item.data, non_blocking=True)


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


def _update_piece(source: Item, target: Item, is_new: bool) -> bool:
    """Whether the copy was equal. Every byte is compared or copied, hardly any both."""
    source_address = source.data.data_ptr()
    target_address = target.data.data_ptr()
    length = source.bytes
    begin = 0
    if not is_new:
        begin = first_difference(source_address, target_address, length)
    if begin < length:
        ctypes.memmove(target_address + begin, source_address + begin, length - begin)
    return begin >= length
