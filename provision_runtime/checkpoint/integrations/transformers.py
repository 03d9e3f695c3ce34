"""transformers.Trainer: a callback that saves model, optimizer, scheduler, the Trainer's state and the
random generators, and continues equal to the bit.

    callback = CheckpointCallback("run/checkpoints", every=100)
    trainer = Trainer(..., args=TrainingArguments(save_strategy="no", ...), callbacks=[callback])
    trainer.train(resume_from_checkpoint=callback.resume(trainer))
"""

from __future__ import annotations

import json
import os
import tempfile
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from .. import CheckpointManager, Rng, load
from ..errors import CheckpointError, NoCheckpoint
from ..rng import rank_number, rng_state

__all__ = ["CheckpointCallback"]

TRAINER_STATE = "trainer_state.json"


class CheckpointCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Saves during `Trainer.train`, as `CheckpointManager` does. All ranks have one.

    Args:
        root: The folder of the run's checkpoints, or a URL that fsspec supports.
        every: Steps between saves.
        keep: How many of the last checkpoints stay; None: all.
        options: Others of CheckpointManager: background, on_signal, storage_options, ...
    """

    def __init__(
        self, root: str | os.PathLike[str], *, every: int, keep: int | None = 3, **options: Any
    ) -> None:
        self._root, self._every, self._keep, self._options = root, every, keep, options
        self._storage_options = options.get("storage_options")
        self._trainer: Any = None
        self._manager: CheckpointManager | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._resume_step: int | None = None
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
        if getattr(trainer, "is_deepspeed_enabled", False):
            raise CheckpointError("DeepSpeed keeps the states of its engine itself: use its own")
        self._trainer = trainer
        state: dict[str, Any] = {"trainer": {"state": ""}, "rng": rng_state()}
        try:
            report = load(
                state, self._root, on_damage="previous", storage_options=self._storage_options
            )
        except NoCheckpoint:
            return None
        self._resume_step = report.step
        self._folder = tempfile.TemporaryDirectory(prefix="provision-resume-")
        self._write_folder(self._folder.name, state)
        # The model is filled from our checkpoint when the training begins; it is not in this folder.
        trainer._load_from_checkpoint = lambda *arguments, **options: None
        return self._folder.name

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Fills the objects from the checkpoint.

        Args:
            args: The Trainer's arguments.
            state: The Trainer's state.
            control: The Trainer's control.
            parts: The objects of the training.

        Raises:
            CheckpointError: If `resume` was not called, or the Trainer begins at another step.
        """
        if self._trainer is None:
            raise CheckpointError(
                "call trainer.train(resume_from_checkpoint=callback.resume(trainer)), "
                "also at the first start"
            )
        names = {"model": "model", "optim": "optimizer", "scheduler": "lr_scheduler"}
        objects: dict[str, Any] = {name: parts[part] for name, part in names.items()}
        scaler = getattr(self._trainer.accelerator, "scaler", None)
        if scaler is not None:
            objects["scaler"] = scaler
        objects["trainer"] = _TrainerState(self._trainer)
        if self._resume_step is not None:
            if state.global_step != self._resume_step:
                raise CheckpointError(
                    f"the Trainer begins at step {state.global_step}, not at {self._resume_step}: "
                    "pass what callback.resume(trainer) returned as resume_from_checkpoint"
                )
            load(
                dict(objects),
                self._root,
                step=self._resume_step,
                storage_options=self._storage_options,
            )
        objects["rng"] = Rng()
        self._manager = CheckpointManager(
            self._root, objects, every=self._every, keep=self._keep, **self._options
        )

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

    def on_step_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> Any:
        """Saves the step before, if it is time; ends the training after SIGTERM.

        Args:
            args: The Trainer's arguments.
            state: The Trainer's state.
            control: The Trainer's control.
            parts: The objects of the training.

        Returns:
            The control.
        """
        step, self._pending = self._pending, None
        if step is not None and self._manager is not None and self._manager.after_step(step):
            control.should_training_stop = True
        return control

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
        manager, self._manager = self._manager, None
        if manager is not None:
            manager.__exit__(None, None, None)
        if self._folder is not None:
            self._folder.cleanup()

    def _write_folder(self, folder: str, state: dict[str, Any]) -> None:
        """What the Trainer reads by itself: its state, and the states of the random generators."""
        import torch

        with open(os.path.join(folder, TRAINER_STATE), "w", encoding="utf-8") as file:
            file.write(state["trainer"]["state"])
        own = state["rng"][str(rank_number(None))]
        version, numbers, gauss = json.loads(own["python"])
        numpy = json.loads(own["numpy"])
        states: dict[str, Any] = {
            "python": (version, tuple(numbers), gauss),
            "numpy": _numpy_state(numpy),
            "cpu": own["torch"],
        }
        if "cuda" in own:
            devices = [own["cuda"][key] for key in sorted(own["cuda"], key=int)]
            is_distributed = self._trainer.args.world_size > 1
            device = torch.cuda.current_device()
            states["cuda"] = devices[device] if is_distributed else devices
        rank = f"_{self._trainer.args.process_index}" if self._trainer.args.world_size > 1 else ""
        torch.save(states, os.path.join(folder, f"rng_state{rank}.pth"))


class _TrainerState:
    """The Trainer's own state, as it writes it into trainer_state.json. The Trainer reads it, so that a
    load leaves it alone.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, str]:
        trainer = self._trainer
        for part in [*trainer.callback_handler.callbacks, trainer.control]:
            if isinstance(part, ExportableState):
                states, name = trainer.state.stateful_callbacks, type(part).__name__
                if isinstance(states.get(name), list):
                    states[name].append(part.state())
                else:
                    states[name] = part.state()
        with tempfile.TemporaryDirectory(prefix="provision-state-") as folder:
            path = os.path.join(folder, TRAINER_STATE)
            trainer.state.save_to_json(path)
            with open(path, encoding="utf-8") as file:
                return {"state": file.read()}

    def blank_state(self) -> dict[str, str]:
        return {"state": ""}

    def load_state_dict(self, state: dict[str, str]) -> None:
        pass


def _numpy_state(state: dict[str, Any]) -> Any:
    """As `numpy.random.get_state` returns it."""
    import numpy

    inner = state["state"]
    keys = numpy.array(inner["key"], dtype=numpy.uint32)
    return state["bit_generator"], keys, inner["pos"], state["has_gauss"], state["gauss"]
