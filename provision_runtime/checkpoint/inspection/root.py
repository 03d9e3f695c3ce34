"""Opens the root on the command line, or explains what the user named instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from .. import layout, manifest
from ..backends import Backend, open_root
from ..errors import CheckpointError

NAME_THE_ROOT = "Name the folder that the job passes to checkpoint.save."
# Kinds of errors.
INVALID, DAMAGED, UNREACHABLE = "invalid", "damaged", "unreachable"


class InspectionError(Exception):
    """The command failed: what happened, and what to do next."""

    def __init__(self, kind: str, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.advice = advice


@contextmanager
def opened(root: str, options: Mapping[str, object]) -> Iterator[Backend]:
    """The store. options: fsspec's, for a URL.

    Raises InspectionError if the root cannot be opened or holds something else than checkpoints, and
    while the store is used if that is at a URL and fails; a folder's errors are the system's own.
    """
    is_folder = "://" not in root or root.startswith(("file://", "local://"))
    if options and is_folder:
        raise InspectionError(
            INVALID,
            f"{root} is a folder: --option {next(iter(options))} is for a store at a URL.",
        )
    try:
        try:
            backend = open_root(root, options)
        except (CheckpointError, TypeError) as error:
            # A store's package refuses an option that it does not know by TypeError.
            raise InspectionError(INVALID, f"{error}.") from error
        if is_folder:
            _check_folder(Path(backend.root), backend)
        yield backend
    except OSError as error:
        if is_folder:
            raise
        raise InspectionError(
            UNREACHABLE,
            f"{root}: {error.strerror or error}.",
            "Check the address and your credentials.",
        ) from error


def _check_folder(path: Path, backend: Backend) -> None:
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
    if any(path.iterdir()) and not backend.folders():
        raise InspectionError(INVALID, f"{path} holds no checkpoints of provision.", NAME_THE_ROOT)
