"""transformers.Trainer: a callback that saves model, optimizer, scheduler, the Trainer's state and the
random generators, and continues equal to the bit.

    callback = CheckpointCallback("run/checkpoints", every=100)
    trainer = Trainer(..., args=TrainingArguments(save_strategy="no", ...), callbacks=[callback])
    trainer.train(resume_from_checkpoint=callback.resume(trainer))
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from .. import CheckpointManager, PerRank, load
from ..errors import CheckpointError, NoCheckpoint

__all__ = ["CheckpointCallback"]


class CheckpointCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Saves during `Trainer.train`, as `CheckpointManager` does. All ranks have one.

    Args:
        root: The folder of the run's checkpoints.
        every: Steps between saves.
        options: Others of CheckpointManager: keep, background, on_signal, ...
    """

    def __init__(self, root: str | os.PathLike[str], *, every: int, **options: Any) -> None:
        self._root = root
        self._options = {"every": every, **options}
        self._files: _TrainerFiles | None = None
        self._manager: CheckpointManager | None = None
        self._resume_step = 0
        # The step that is over, and not yet saved.
        self._pending: int | None = None

    def resume(self, trainer: Any) -> str | None:
        """Prepares the Trainer for the latest checkpoint. Call it before `train`, on all ranks.

        Args:
            trainer: The Trainer that has this callback.

        Returns:
            What `train(resume_from_checkpoint=...)` takes; None at the first start.

        Raises:
            CheckpointError: If the checkpoint cannot be read, or DeepSpeed trains, which keeps its
                states itself.
        """
        if trainer.is_deepspeed_enabled:
            raise CheckpointError("DeepSpeed keeps the states of its engine itself: use its own")
        self._files = _TrainerFiles(trainer)
        try:
            report = load({"trainer": PerRank(self._files)}, self._root, on_damage="previous")
        except NoCheckpoint:
            return None
        self._resume_step = report.step
        # The model is filled from our checkpoint when the training begins; this folder has none.
        trainer._load_from_checkpoint = lambda *arguments, **options: None
        return self._files.folder.name

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Fills the objects from the checkpoint.

        Args:
            args: The Trainer's arguments.
            state: The Trainer's state.
            control: The Trainer's control.
            parts: The objects of the training.

        Raises:
            CheckpointError: If the Trainer does not begin where `resume` said.
        """
        if self._files is None or state.global_step != self._resume_step:
            raise CheckpointError(
                f"the Trainer begins at step {state.global_step}: call "
                "trainer.train(resume_from_checkpoint=callback.resume(trainer)), also at the first start"
            )
        objects = {
            "model": parts["model"],
            "optim": parts["optimizer"],
            "scheduler": parts["lr_scheduler"],
        }
        scaler = self._files.trainer.accelerator.scaler
        if scaler is not None:
            objects["scaler"] = scaler
        if self._resume_step:
            load(objects, self._root, step=self._resume_step)
        objects["trainer"] = PerRank(self._files)
        self._manager = CheckpointManager(self._root, objects, **self._options)

    # A step's evaluation comes after on_step_end, and draws random numbers. So a step is saved when
    # the next one begins, where the Trainer restores the generators too; that of an epoch's last
    # step when the next epoch begins.

    def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Notes that the step is over.

        Args:
            args: The Trainer's arguments.
            state: The Trainer's state.
            control: The Trainer's control.
            parts: The objects of the training.
        """
        self._pending = state.global_step

    def on_step_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Saves the step before, if it is time; ends the training after SIGTERM.

        Args:
            args: The Trainer's arguments.
            state: The Trainer's state.
            control: The Trainer's control.
            parts: The objects of the training.
        """
        step, self._pending = self._pending, None
        if step is not None and self._manager is not None and self._manager.after_step(step):
            control.should_training_stop = True

    on_epoch_begin = on_step_begin

    def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Saves the last step if it is due, and waits for a save in the background.

        Args:
            args: The Trainer's arguments.
            state: The Trainer's state.
            control: The Trainer's control.
            parts: The objects of the training.
        """
        self.on_step_begin(args, state, control)
        if self._manager is not None:
            self._manager.__exit__(None, None, None)


class _TrainerFiles:
    """The files in which the Trainer keeps its state and the random generators of a rank.

    folder: where the Trainer reads them.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.folder = tempfile.TemporaryDirectory(prefix="provision-trainer-")

    def state_dict(self) -> dict[str, bytes]:
        trainer = self.trainer
        states = trainer.state.stateful_callbacks
        for part in [*trainer.callback_handler.callbacks, trainer.control]:
            if isinstance(part, ExportableState):
                states[type(part).__name__] = part.state()
        with tempfile.TemporaryDirectory(prefix="provision-trainer-") as folder:
            trainer.state.save_to_json(os.path.join(folder, "trainer_state.json"))
            trainer._save_rng_state(folder)
            return {path.name: path.read_bytes() for path in Path(folder).iterdir()}

    def load_state_dict(self, files: dict[str, bytes]) -> None:
        for name, content in files.items():
            Path(self.folder.name, os.path.basename(name)).write_bytes(content)
