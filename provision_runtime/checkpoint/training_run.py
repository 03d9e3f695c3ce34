"""The checkpoints of one training run: when to save, which to keep, and where to continue."""

from __future__ import annotations

import signal
import threading
import warnings
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..comm import collective
from ..comm.store import RanksMissing, StoreLost
from . import catalog, loader, retention, saver
from .errors import CheckpointError, CheckpointWarning, NoCheckpoint
from .items import StateDict
from .rehash import Rehash
from .storage import Root, Storage

if TYPE_CHECKING:
    from concurrent.futures import Future
    from types import FrameType, TracebackType

    from ..comm.ranks import Ranks

# The signal by which schedulers announce the end; the other, SIGUSR1, saves and goes on.
STOP = "SIGTERM"
METRICS = "metrics"


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

    Args:
        root: The folder of the run's checkpoints.
        state_dict: What to save and to fill, as for `save` and `load`.
        every: Steps between saves.
        keep: How many of the last checkpoints stay; None: all.
        best: The metric by which the best checkpoint stays too.
        best_mode: "min" or "max": which value of the metric is best.
        background: Saves as `save_async` does.
        on_signal: Saves at SIGUSR1; saves and stops at SIGTERM.
        agree_every: Steps between two comparisons of the signals.
        ranks: How the ranks exchange values. Default: through the store of the default process group.
        deadline_s: Seconds that a rank may be silent, as for `save`.

    Raises:
        ValueError: For counts below 1, for a mode that is neither min nor max, and for on_signal
            outside of the main thread.
    """

    def __init__(
        self,
        root: Root,
        state_dict: StateDict,
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
    ) -> None:
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
        self.state_dict = state_dict
        self._root = root
        self._ranks, self._signal_ranks = ranks, signal_ranks or ranks
        self._every, self._keep, self._agree_every = every, keep, agree_every
        self._best, self._best_mode = best, best_mode
        self._background = background
        self._saving: Future[None] | None = None
        self._rehash = Rehash()
        # The last prune left a checkpoint in place of second copies. The same on all ranks.
        self._lacks_copies = False
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
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            self._handlers = {}
            self._rehash.stop()
            self._warn_of_damage()

    def restore(self, *, strict: bool = True, allow_pickle: bool = False) -> int | None:
        """Loads the latest checkpoint into the state dict.

        A damaged file is replaced by its second copy, if that is intact; else the checkpoint is
        skipped for the one before. Both with a CheckpointWarning.

        Args:
            strict: As for `load`.
            allow_pickle: As for `load`.

        Returns:
            The step of the checkpoint; None at the first start.

        Raises:
            DamagedFile: If no checkpoint is intact.
            CheckpointError: As `load`.
            OSError: If the store fails.
        """
        try:
            report = loader.load(
                self.state_dict,
                self._root,
                catalog.LATEST,
                self._ranks,
                on_damage=catalog.PREVIOUS,
                allow_pickle=allow_pickle,
                strict=strict,
            )
        except NoCheckpoint:
            return None
        return report.step

    def after_step(self, step: int, **metrics: float) -> bool:
        """Saves if it is time, or if a signal came.

        Args:
            step: The number of the step that is over.
            metrics: Numbers of this step, kept with its checkpoint. Rank 0's count.

        Returns:
            Whether training must stop.

        Raises:
            NotCommitted: As `save`.
            CheckpointError: As `save`.
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
        """Saves this step now, and removes what need not be kept.

        Warns (CheckpointWarning) of old checkpoints that could not be removed or copied.

        Args:
            step: The number of the step.
            metrics: Numbers of this step, kept with its checkpoint. Rank 0's count.

        Raises:
            NotCommitted: If this save failed, or the one in the background before it.
            CheckpointError: If the state dict cannot be saved.
        """
        self.finish()
        self._warn_of_damage()
        if self._lacks_copies:
            self._prune(with_copies=False)  # its space may be needed
        metadata = {METRICS: metrics} if metrics else None
        write = saver.prepare(
            self.state_dict,
            self._root,
            step,
            self._ranks,
            in_background=self._background,
            metadata=metadata,
        )

        def write_and_prune() -> None:
            write()
            self._prune()

        if self._background:
            self._saving = saver.BACKGROUND.start(write_and_prune)
        else:
            write_and_prune()

    def finish(self) -> None:
        """Waits for a save in the background.

        Raises:
            NotCommitted: If it failed.
        """
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()

    def best_step(self) -> int | None:
        """Reads the metrics of all checkpoints.

        Returns:
            The step with the best one; None if no checkpoint has the metric.

        Raises:
            OSError: If the store fails.
        """
        if self._best is None:
            return None
        storage = Storage(self._root)
        values = {}
        for name in catalog.steps(storage):
            content = catalog.manifest_if_intact(storage, str(name))
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
        storage = Storage(self._root)

        def plan() -> dict[str, object]:
            best = self.best_step()
            protected = () if best is None else (best,)
            return asdict(retention.plan_pruning(storage, self._keep, protected=protected))

        self._lacks_copies = False
        try:
            chosen = retention.Pruned(**collective.broadcast("checkpoint/plan", self._ranks, plan))
            pruned = retention.carry_out(storage, chosen, self._ranks, self._keep, with_copies)
            problems, self._lacks_copies = pruned.problems, pruned.lacks_copies
        except (OSError, CheckpointError, RanksMissing, StoreLost) as error:
            problems = (f"old checkpoints were not removed: {error}",)
        if self._ranks.rank == 0 and with_copies:
            for problem in problems:
                warnings.warn(problem, CheckpointWarning, stacklevel=2)
            self._rehash.start(storage)

    def _warn_of_damage(self) -> None:
        """Of what was found in the background."""
        while self._rehash.problems:
            warnings.warn(self._rehash.problems.popleft(), CheckpointWarning, stacklevel=3)

    def _agree(self) -> set[str]:
        """The signals that came to any rank since they last agreed."""
        if self._signal_ranks is self._ranks:
            self.finish()  # the caller's ranks exchange values in one thread at a time
        received, self._received = self._received, set()
        requested: set[str] = set()
        for names in self._signal_ranks.exchange("checkpoint/signals", sorted(received)):
            requested.update(names)
        return requested

    def _listen(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise ValueError("on_signal=True works only in the main thread: pass on_signal=False")
        for number in (signal.SIGTERM, signal.SIGUSR1):
            self._handlers[number] = signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._received.add(signal.Signals(number).name)
