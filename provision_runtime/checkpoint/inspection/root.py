"""Opens the root on the command line, or explains what the user named instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from .. import dcp, layout, manifest
from ..backends import Backend, open_root
from ..errors import CheckpointError

NAME_THE_ROOT = "Name the folder that the job passes to checkpoint.save."
MAX_FOLDERS_IN_TEXT = 3
# Kinds of errors.
INVALID, DAMAGED, IN_USE, UNREACHABLE = "invalid", "damaged", "in use", "unreachable"


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
    if not path.exists():
        raise InspectionError(INVALID, f"There is no folder {path}.", NAME_THE_ROOT)
    if not path.is_dir():
        raise InspectionError(INVALID, f"{path} is a file.", NAME_THE_ROOT)
    name = layout.parse(path.resolve().name)
    if name is not None and (path / manifest.NAME).exists():
        parent = path.resolve().parent if path.name in ("", "..") else path.parent
        raise InspectionError(
            INVALID,
            f"{path} is one checkpoint.",
            f"Name the folder that holds it, {parent}, and choose with --step {name.step}.",
        )
    names = [entry.name for entry in path.iterdir()]
    if names and not backend.folders():
        raise _foreign_folder(path, names)


def _foreign_folder(path: Path, names: list[str]) -> InspectionError:
    """For a folder that is not empty and holds no checkpoint."""
    if dcp.NAME in names:
        return InspectionError(
            INVALID,
            f"{path} is a checkpoint that torch's own dcp.save wrote, not one of provision's.",
            "torch.distributed.checkpoint reads it. It has no hashes to verify.",
        )
    roots = [str(path / name) for name in sorted(names) if _holds_checkpoints(path / name)]
    advice = NAME_THE_ROOT
    if roots:
        more = " and others" if len(roots) > MAX_FOLDERS_IN_TEXT else ""
        advice = f"There are some in {', '.join(roots[:MAX_FOLDERS_IN_TEXT])}{more}."
    return InspectionError(INVALID, f"{path} holds no checkpoints.", advice)


def _holds_checkpoints(path: Path) -> bool:
    try:
        return path.is_dir() and any(layout.parse(entry.name) for entry in path.iterdir())
    except OSError:
        return False
