"""From what was named on the command line to the store of the checkpoints, or one line that says what was named instead."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from provision.core.errors import InvalidSpec, Unreachable
from provision_runtime.checkpoint import Backend, CheckpointError, backends, dcp, layout, manifest

ASKED = "Name the folder that the job gives to checkpoint.save."


def open_root(root: str, options: Mapping[str, Any] | None = None) -> Backend:
    """The store. options: fsspec's, for a URL. Raises InvalidSpec where the root is not one, with what it is."""
    if options and is_folder(root):
        raise InvalidSpec(
            f"{root} is a folder: --option {next(iter(options))} is for a store at a URL."
        )
    try:
        backend = backends.open_root(root, **(options or {}))
    except (
        CheckpointError,
        TypeError,
    ) as error:  # a store's package refuses an option that it does not know by TypeError
        raise InvalidSpec(f"{error}.") from error
    if is_folder(root):
        _check_folder(Path(backend.root), backend)
    return backend


def is_folder(root: str) -> bool:
    return "://" not in root or root.startswith(("file://", "local://"))


@contextlib.contextmanager
def store_errors(root: str) -> Iterator[None]:
    """What a store at a URL answers, in our terms; a folder's errors are the system's own."""
    try:
        yield
    except OSError as error:
        if is_folder(root):
            raise
        raise Unreachable(
            f"{root}: {error.strerror or error}.",
            advice="Is the address right, and are you let in?",
        ) from error


def _check_folder(path: Path, backend: Backend) -> None:
    if not path.exists():
        raise InvalidSpec(f"There is no folder {path}.", advice=ASKED)
    if not path.is_dir():
        raise InvalidSpec(f"{path} is a file.", advice=ASKED)
    named = layout.parse(path.resolve().name)
    if named is not None and (path / manifest.NAME).exists():
        above = path.resolve().parent if path.name in ("", "..") else path.parent
        raise InvalidSpec(
            f"{path} is one checkpoint.",
            advice=f"Name the folder that holds it, {above}, and choose with --step {named.step}.",
        )
    names = [entry.name for entry in path.iterdir()]
    if names and not backend.folders():
        _refuse_foreign(path, names)


def _refuse_foreign(path: Path, names: list[str]) -> None:
    """A folder with things in it of which none is a checkpoint."""
    if dcp.NAME in names:
        advice = "torch.distributed.checkpoint reads it; it holds no hashes by which it could be verified."
        raise InvalidSpec(
            f"{path} is a checkpoint that torch's own dcp.save wrote, not a folder of ours.",
            advice=advice,
        )
    below = [str(path / name) for name in sorted(names) if _holds_checkpoints(path / name)]
    found = (
        f"There are some in {', '.join(below[:3])}{' and others' if len(below) > 3 else ''}."
        if below
        else ASKED
    )
    raise InvalidSpec(f"{path} holds no checkpoints.", advice=found)


def _holds_checkpoints(path: Path) -> bool:
    try:
        return path.is_dir() and any(layout.parse(entry.name) for entry in path.iterdir())
    except OSError:
        return False
