"""Lightning and Fabric: a CheckpointIO that saves checkpoints which are whole or absent, and hashed.

    trainer = lightning.Trainer(plugins=[ProvisionCheckpointIO()])
    fabric = lightning.Fabric(plugins=[ProvisionCheckpointIO()])

Each path that Lightning names, such as `last.ckpt`, becomes a folder with one checkpoint in it.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

from lightning.fabric.plugins import CheckpointIO, TorchCheckpointIO

from ...comm.ranks import single_process
from .. import read, save
from .. import structure as structures
from ..backends import open_root
from ..catalog import committed
from ..errors import CheckpointError

__all__ = ["ProvisionCheckpointIO"]


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
            storage_options: fsspec's options, if the path is a URL.

        Raises:
            CheckpointError: If it holds what cannot be saved.
            NotCommitted: If it could not be written; nothing new is visible then.
        """
        root = os.fspath(path)
        if os.path.isfile(root):
            raise CheckpointError(f"{root} is a file of Lightning: remove it, or name another path")
        step = checkpoint.get("global_step")
        report = save(
            structures.split(checkpoint),
            root,
            step=step if isinstance(step, int) else 0,
            ranks=single_process(),
            storage_options=storage_options,
        )
        backend = open_root(root, storage_options)
        folders = [str(name) for name in committed(backend)]
        backend.remove(*(folder for folder in folders if not report.folder.endswith(folder)))

    def load_checkpoint(
        self,
        path: str | os.PathLike[str],
        map_location: Any = None,
        weights_only: bool | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """Reads a checkpoint, after its files were verified.

        Args:
            path: The folder, or a file that Lightning wrote.
            map_location: A device, to which the tensors go; others leave them in host memory.
            weights_only: False also unpickles objects, which can run code.
            options: Others of Lightning's, for its own files.

        Returns:
            What was saved.

        Raises:
            CheckpointError: If it is damaged, with the file, or holds objects that must not be
                unpickled, with their names.
        """
        import torch

        root = os.fspath(path)
        if os.path.isfile(root):
            if weights_only is not None:
                options["weights_only"] = weights_only
            own: dict[str, Any] = TorchCheckpointIO().load_checkpoint(root, map_location, **options)
            return own
        flat = read(root)
        if isinstance(map_location, (str, torch.device)):
            for name, value in flat.items():
                if isinstance(value, torch.Tensor):
                    flat[name] = value.to(map_location)
        tree: dict[str, Any] = structures.join(flat, allow_pickle=weights_only is False)
        return tree

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Makes the checkpoint invisible, then removes it.

        Args:
            path: The folder, or a file that Lightning wrote.
        """
        root = os.fspath(path)
        if not os.path.isdir(root):
            TorchCheckpointIO().remove_checkpoint(root)
            return
        backend = open_root(root)
        backend.remove(*(str(name) for name in committed(backend)))
        shutil.rmtree(root)
