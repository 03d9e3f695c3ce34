"""Opens the root on the command line, or explains what the user named instead."""

from __future__ import annotations

from pathlib import Path

from .. import layout, manifest
from ..errors import CheckpointError
from ..storage import Storage

NAME_THE_ROOT = "Name the folder that the job passes to checkpoint.save."
# Kinds of errors.
INVALID, DAMAGED = "invalid", "damaged"


class InspectionError(Exception):
    """The command failed: what happened, and what to do next."""

    def __init__(self, kind: str, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.advice = advice


def opened(root: str) -> Storage:
    """Raises InspectionError if the root is a URL or holds something else than checkpoints."""
    try:
        storage = Storage(root)
    except CheckpointError as error:
        raise InspectionError(INVALID, f"{error}.") from error
    path = Path(storage.root)
    if not path.is_dir():
        raise InspectionError(INVALID, f"There is no folder {path}.", NAME_THE_ROOT)
    name = layout.parse(path.resolve().name)
    if name is not None and (path / manifest.NAME).exists():
        raise InspectionError(
            INVALID,
            f"{path} is one checkpoint.",
            f"Name the folder that holds it, {path.resolve().parent}, and choose with "
            f"--step {name.step}.",
        )
    if any(path.iterdir()) and not storage.folders():
        raise InspectionError(INVALID, f"{path} holds no checkpoints of provision.", NAME_THE_ROOT)
    return storage
