"""Opens the root on the command line, or explains what the user named instead."""

from __future__ import annotations

from pathlib import Path

from .. import layout, manifest
from ..errors import CheckpointError as CheckpointError
from ..storage import Storage

NAME_THE_ROOT = "Name the folder that the job passes to checkpoint.save."


class InspectionError(CheckpointError):
    """The command was called wrongly. advice: what to do next."""

    def __init__(self, message: str, advice: str) -> None:
        super().__init__(message)
        self.advice = advice


def opened(root: str) -> Storage:
    """Raises CheckpointError if the root is a URL or holds something else than checkpoints."""
    storage = Storage(root)
    path = Path(storage.root)
    if not path.is_dir():
        raise InspectionError(f"There is no folder {path}", NAME_THE_ROOT)
    name = layout.parse(path.resolve().name)
    if name is not None and (path / manifest.NAME).exists():
        raise InspectionError(
            f"{path} is one checkpoint",
            f"Name the folder that holds it, {path.resolve().parent}, and choose with "
            f"--step {name.step}.",
        )
    if any(path.iterdir()) and not storage.folders():
        raise InspectionError(f"{path} holds no checkpoints of provision", NAME_THE_ROOT)
    return storage
