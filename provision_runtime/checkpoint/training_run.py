"""The checkpoints of one training run: when to save, which to keep, and where to continue."""

from __future__ import annotations

import signal
import threading
import warnings
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from ..comm import collective
from ..comm.store import RanksMissing, StoreLost
from . import catalog, loader, retention, saver
from .backends import open_root
from .errors import CheckpointError, CheckpointWarning, NoCheckpoint
from .rehash import Rehash

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from concurrent.futures import Future
    from types import FrameType, TracebackType

    from ..comm.ranks import Ranks
    from .backends import Backend
    from .commit import SaveProgress
    from .saver import SaveReport

# Signals by which schedulers announce the end: saves and stops, and saves and goes on.
STOP, SAVE = "SIGTERM", "SIGUSR1"
METRICS = "metrics"


def _ignore(_: SaveProgress) -> None:
    """No progress is reported."""


class CheckpointManager:
    """Saves every so many steps, keeps the last and the best, and continues after an interruption.

        with CheckpointManager(root, {"model": m, "optim": o}, every=1000, keep=3) as manager:
            first = (manager.restore() or 0) + 1
            for step in range(first, last + 1):
                ...
                if manager.after_step(step, loss=loss):
                    break  # SIGTERM came; the checkpoint of this step is whole

    All ranks make the same calls. Where signals are used, the ranks compare every `agree_every`
    steps whether one came to any of them, through the store; so a signal leads to a save within
    that many steps, on all ranks at the same one.

    every: steps between saves. keep: how many of the last checkpoints stay (None: all). best: the
    metric by which the best checkpoint stays too; best_mode: min or max. background: save as
    `save_async` does. on_signal: save at SIGUSR1, and save and stop at SIGTERM.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | Backend,
        state_dict: dict[str, Any],
        *,
        every: int,
        keep: int | None = 3,
        best: str | None = None,
        best_mode: str = "min",
        background: bool = False,
        on_signal: bool = True,
        agree_every: int = 10,
        ranks: Ranks | None = None,
        deadline_s: float = 120.0,
        **options: Any,
    ) -> None:
        """Raises ValueError for counts below 1, and for a mode that is neither min nor max."""
        counts = {"every": every, "agree_every": agree_every, "keep": 1 if keep is None else keep}
        for name, count in counts.items():
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise ValueError(f"{name}={count!r}: it must be a whole number of 1 or more")
        if best_mode not in ("min", "max"):
            raise ValueError(f"best_mode={best_mode!r}: pass 'min' or 'max'")
        signal_ranks = ranks
        if ranks is None:
            from ..comm.ranks import of_default_group

            ranks = of_default_group(deadline_s)
            # A save in the background exchanges values meanwhile.
            signal_ranks = of_default_group(deadline_s, "signals")
        if background and ranks.uses_collectives:
            raise ValueError("background=True cannot use ranks that exchange by collectives")
        self.state_dict = state_dict
        self._open = partial(open_root, root, **options)
        self._ranks, self._signal_ranks = ranks, signal_ranks or ranks
        self._every, self._keep, self._agree_every = every, keep, agree_every
        self._best, self._best_mode = best, best_mode
        self._background = background
        self._saving: Future[SaveReport] | None = None
        self._rehash = Rehash()
        # The last prune left a checkpoint in place of second copies. The same on all ranks.
        self._is_late = False
        self._received: set[str] = set()
        self._stopping = False
        self._handlers: dict[int, Any] = {}
        self._on_signal = on_signal
        if on_signal:
            self._listen()

    def __enter__(self) -> CheckpointManager:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self.finish()
        finally:
            self._rehash.stop()
            self._stop_listening()

    def restore(self, *, strict: bool = True, allow_pickle: bool = False) -> int | None:
        """Load the latest checkpoint into the state dict; its step, or None at the first start.

        A damaged file is replaced by its second copy, if that is intact; else the checkpoint is
        skipped for the one before. Both with a CheckpointWarning.
        """
        try:
            report = loader.load(
                self.state_dict,
                self._open,
                loader.LATEST,
                self._ranks,
                on_damage=loader.PREVIOUS,
                allow_pickle=allow_pickle,
                strict=strict,
            )
        except NoCheckpoint:
            return None
        return report.step

    def after_step(self, step: int, **metrics: float) -> bool:
        """Save if it is time, or if a signal came. Returns whether training must stop.

        metrics: numbers of this step, kept with its checkpoint; those of rank 0 count.
        """
        requested: set[str] = set()
        if self._on_signal and step % self._agree_every == 0:
            requested = self._agree()
        is_due = step % self._every == 0
        self._stopping = self._stopping or STOP in requested
        if is_due or requested:
            self.save(step, **metrics)
        if self._stopping:
            self.finish()
        return self._stopping

    def save(self, step: int, **metrics: float) -> None:
        """Save this step now, and remove what need not be kept.

        Warns (CheckpointWarning) of damage that was found in the background since the last save.
        """
        self.finish()
        for problem in self._rehash.take_problems():
            warnings.warn(problem, CheckpointWarning, stacklevel=2)
        if self._is_late:
            self._prune(with_copies=False)  # its space may be needed
        metadata: Mapping[str, Any] = {METRICS: metrics} if metrics else {}
        arguments = (self.state_dict, self._open, step, self._ranks)
        options: dict[str, Any] = {
            "incremental": True,
            "metadata": metadata,
            "progress": _ignore,
        }
        if self._background:
            self._saving = saver.save_async(*arguments, **options, after=self._prune)
        else:
            saver.save(*arguments, **options)
            self._prune()

    def finish(self) -> None:
        """Wait for a save in the background. Raises NotCommitted if it failed."""
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()

    def best_step(self) -> int | None:
        """The step with the best metric of those that are there; None if none has it."""
        if self._best is None:
            return None
        backend = self._open()
        values = {}
        for name in catalog.steps(backend):
            content = catalog.manifest_if_intact(backend, str(name))
            metrics = content.metadata.get(METRICS, {}) if content else {}
            value = metrics.get(self._best)
            if isinstance(value, (int, float)) and value == value:  # not NaN
                values[name.step] = value
        if not values:
            return None
        choose = min if self._best_mode == "min" else max
        return choose(values, key=lambda step: (values[step], step))

    def _prune(self, with_copies: bool = True) -> None:
        """A failure is a warning: the checkpoints are whole, there are only too many."""
        backend = self._open()

        def plan() -> dict[str, Any]:
            best = self.best_step()
            protected = () if best is None else (best,)
            return asdict(retention.plan_pruning(backend, self._keep, protected=protected))

        self._is_late = False
        try:
            chosen = retention.Pruned(**collective.broadcast("checkpoint/plan", self._ranks, plan))
            pruned = retention.carry_out(backend, chosen, self._ranks, self._keep, with_copies)
            problems, self._is_late = pruned.problems, pruned.lacks_copies
        except (OSError, CheckpointError, RanksMissing, StoreLost) as error:
            problems = (f"old checkpoints were not removed: {error}",)
        if self._ranks.rank == 0 and with_copies:
            for problem in problems:
                warnings.warn(problem, CheckpointWarning, stacklevel=2)
            self._rehash.start(backend)

    def _agree(self) -> set[str]:
        """The signals that came to any rank since they last agreed."""
        if self._signal_ranks is self._ranks:
            self.finish()  # the caller's ranks exchange values in one thread at a time
        own, self._received = self._received, set()
        requested: set[str] = set()
        for names in self._signal_ranks.exchange("checkpoint/signals", sorted(own)):
            requested.update(names)
        return requested

    def _listen(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise ValueError("on_signal=True works only in the main thread: pass on_signal=False")
        for name in (STOP, SAVE):
            number = getattr(signal, name)
            self._handlers[number] = signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._received.add(signal.Signals(number).name)

    def _stop_listening(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}
