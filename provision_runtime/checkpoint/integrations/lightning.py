"""Lightning and Fabric: a CheckpointIO that saves checkpoints which are whole or absent, and hashed.

    trainer = lightning.Trainer(plugins=[ProvisionCheckpointIO()])
    fabric = lightning.Fabric(plugins=[ProvisionCheckpointIO()])

Each path that Lightning names, such as `last.ckpt`, becomes a folder with one checkpoint in it. The
tensors of state dicts have their names there; the rest, with the optimizers, is one tensor with what
torch.save makes of it.
"""

from __future__ import annotations

import io
import os
import shutil
from typing import Any

from lightning.fabric.plugins import CheckpointIO, TorchCheckpointIO

from ...comm.ranks import single_process
from .. import read, save
from ..memory import memory_of
from ..unpickle import load_object

__all__ = ["ProvisionCheckpointIO"]

REST = "_rest"


class ProvisionCheckpointIO(CheckpointIO):  # type: ignore[misc, unused-ignore]
    """Saves and loads Lightning's checkpoints in our layout. Rank 0 writes, as Lightning does.

    Files that Lightning itself wrote can still be loaded.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Commits a checkpoint; the one that was at this path before stays until then.

        Args:
            checkpoint: What Lightning saves.
            path: The folder for it.
            storage_options: Not supported: the path is a folder.

        Raises:
            NotCommitted: If it could not be written; nothing new is visible then.
            TypeError: For storage_options.
        """
        import torch

        if storage_options is not None:
            raise TypeError("checkpoints are saved in a folder, which takes no storage_options")

        state: dict[str, Any] = {}
        rest = {}
        for key, value in checkpoint.items():
            items = value.values() if isinstance(value, dict) else ()
            if items and "." not in key and all(isinstance(item, torch.Tensor) for item in items):
                state[key] = value
            else:
                rest[key] = value
        buffer = io.BytesIO()
        torch.save(rest, buffer)
        state[REST] = torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)
        # Step 0: another save to this path replaces it.
        save(state, path, step=0, ranks=single_process())

    def load_checkpoint(
        self,
        path: str | os.PathLike[str],
        map_location: Any = None,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Reads a checkpoint into host memory, after its files were verified.

        Args:
            path: The folder, or a file that Lightning wrote.
            map_location: For a file that Lightning wrote.
            weights_only: False also unpickles objects, which can run code.

        Returns:
            What was saved.

        Raises:
            DamagedFile: With the file.
            CheckpointError: If it holds objects that must not be unpickled.
        """
        if os.path.isfile(path):
            return dict(TorchCheckpointIO().load_checkpoint(path, map_location))
        flat = read(path)
        tree = load_object(REST, bytes(memory_of(flat.pop(REST))), weights_only is False)
        for name, value in flat.items():
            key, _, inner = name.partition(".")
            tree.setdefault(key, {})[inner] = value
        return dict(tree)

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Removes the checkpoint. What a killed removal leaves is damaged, and is not loaded.

        Args:
            path: The folder.
        """
        shutil.rmtree(path)
