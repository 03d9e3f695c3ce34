"""accelerate: `save_state` and `load_state` with the weights in our layout, by accelerate's own hooks.

    register(accelerator)
    accelerator.save_state("run/state")

accelerate saves the rest in the folder itself: optimizers, schedulers, samplers, random states. To have
all of it in one checkpoint that is whole or absent, pass the prepared objects to `CheckpointManager`:
they are live objects.
"""

from __future__ import annotations

import os
from typing import Any

from .. import load, save

__all__ = ["register"]


def register(accelerator: Any) -> None:
    """Saves and loads the models of an Accelerator as checkpoints of ours, in the folder `weights` of
    the state's folder. All ranks call it.

    Args:
        accelerator: The Accelerator.
    """

    def before_save(models: list[Any], weights: list[Any], folder: str) -> None:
        save(_named(models), os.path.join(folder, "weights"), step=0)
        weights.clear()  # accelerate then writes none

    def before_load(models: list[Any], folder: str) -> None:
        load(_named(models), os.path.join(folder, "weights"))
        models.clear()  # accelerate then reads none

    accelerator.register_save_state_pre_hook(before_save)
    accelerator.register_load_state_pre_hook(before_load)


def _named(models: list[Any]) -> dict[str, Any]:
    return {f"model_{number}": model for number, model in enumerate(models)}
