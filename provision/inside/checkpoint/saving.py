"""Saving a state dict, at once or behind the training's back."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Callable

from .commit import Doing, commit
from .planning import Item, Plan, plan_save

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from ..ranks import Ranks
    from .backends import Backend


@dataclass(frozen=True)
class SaveReport:
    """What a save did. Bytes are of tensors, over all ranks: written anew, or linked since the parent has them. Seconds are this
    rank's: planning, copying to host memory (save_async), writing, committing."""

    step: int
    folder: str
    bytes: int
    written: int
    linked: int
    plan_s: float
    snapshot_s: float
    write_s: float
    commit_s: float

    @property
    def rate(self) -> float:
        """Bytes per second from the first write to the commit."""
        return self.bytes / (self.write_s + self.commit_s) if self.write_s + self.commit_s else 0.0


class Background:
    """One save at a time behind the training's back, with host memory that is used again from save to save."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="provision-checkpoint")
        self._buffers: dict[tuple[Any, ...], torch.Tensor] = {}
        self._last: Future[SaveReport] | None = None
        self._lock = threading.Lock()

    def finish(self) -> None:
        """Wait until the save that is under way is over; what became of it, its own future tells."""
        with self._lock:
            if self._last is not None:
                self._last.exception()

    def start(self, plan: Plan, save: Callable[[Plan, float], SaveReport]) -> Future[SaveReport]:
        """Copy, then save the copy in the background. The one before must be over (finish)."""
        started = time.monotonic()
        copied = self._copy(plan)
        snapshot_s = time.monotonic() - started
        with self._lock:
            self._last = self._pool.submit(save, copied, snapshot_s)
            return self._last

    def _copy(self, plan: Plan) -> Plan:
        import torch

        wanted = {(item.name, item.offsets): item for item in plan.items if not item.is_object}
        self._buffers = {key: self._buffer(key, item) for key, item in wanted.items()}
        with torch.no_grad():
            for key, item in wanted.items():
                self._buffers[key].copy_(item.data, non_blocking=True)
        if any(item.data.is_cuda for item in wanted.values()):
            torch.cuda.synchronize()
        items = [item if item.is_object else replace(item, data=self._buffers[item.name, item.offsets]) for item in plan.items]
        return replace(plan, items=tuple(items))

    def _buffer(self, key: tuple[Any, ...], item: Item) -> torch.Tensor:
        import torch

        held = self._buffers.get(key)
        if held is not None and held.shape == item.data.shape and held.dtype == item.data.dtype:
            return held
        return torch.empty(item.data.shape, dtype=item.data.dtype, pin_memory=item.data.is_cuda)


BACKGROUND = Background()


def save(
    state_dict: Mapping[str, Any],
    backend: Backend,
    step: int,
    ranks: Ranks,
    *,
    incremental: bool,
    progress: Callable[[Doing], None],
) -> SaveReport:
    BACKGROUND.finish()
    started = time.monotonic()
    plan = plan_save(state_dict, ranks)
    return _commit(plan, backend, step, ranks, incremental, progress, time.monotonic() - started, 0.0)


def save_async(
    state_dict: Mapping[str, Any],
    backend: Backend,
    step: int,
    ranks: Ranks,
    *,
    incremental: bool,
    progress: Callable[[Doing], None],
) -> Future[SaveReport]:
    BACKGROUND.finish()
    started = time.monotonic()
    plan = plan_save(state_dict, ranks)
    plan_s = time.monotonic() - started
    return BACKGROUND.start(plan, lambda copied, copy_s: _commit(copied, backend, step, ranks, incremental, progress, plan_s, copy_s))


def _commit(
    plan: Plan,
    backend: Backend,
    step: int,
    ranks: Ranks,
    incremental: bool,
    progress: Callable[[Doing], None],
    plan_s: float,
    snapshot_s: float,
) -> SaveReport:
    made = commit(backend, step, plan, ranks, incremental=incremental, progress=progress)
    folder = f"{backend.root}/{made.folder}"
    done = made.done
    return SaveReport(step, folder, done.total, done.written, done.linked, plan_s, snapshot_s, made.write_s, made.commit_s)
