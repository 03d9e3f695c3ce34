"""Which checkpoints a root holds, which is the latest, and what dead writers left behind.

Works without torch.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from . import layout, manifest
from .errors import CheckpointError, DamagedFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from .layout import CheckpointName
    from .manifest import Manifest
    from .storage import Storage

# How often to list a root that changes each time.
TRIES = 100


def committed(storage: Storage) -> list[CheckpointName]:
    """By step and generation. A step that is being saved again may have several for a moment."""
    names = [layout.parse(folder) for folder in storage.folders()]
    return sorted(name for name in names if name is not None)


def steps(storage: Storage) -> list[CheckpointName]:
    """The newest generation of every step, in order of steps."""
    newest = {name.step: name for name in committed(storage)}
    return list(newest.values())


def read_manifest(storage: Storage, folder: str) -> Manifest:
    """Raises DamagedFile if the manifest is missing, not what was committed, or of another step
    than its folder.
    """
    path = f"{storage.root}/{folder}/{manifest.NAME}"
    try:
        size = storage.stat(folder, manifest.NAME).size
        if size > manifest.MAX_BYTES:
            raise DamagedFile(path, manifest.TOO_BIG.format(size))
        content = manifest.loads(storage.read(folder, manifest.NAME), path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DamagedFile(path, "it is missing") from error
    name = layout.parse(folder)
    if name is not None and name.step != content.step:
        raise DamagedFile(path, f"it is of step {content.step}, not {name.step}")
    return content


def manifest_if_intact(storage: Storage, folder: str | None) -> Manifest | None:
    """None also without a folder."""
    if folder is None:
        return None
    try:
        return read_manifest(storage, folder)
    except (CheckpointError, OSError):
        return None


def latest(storage: Storage) -> str | None:
    """The folder that `latest` names, or else the last commit that can be read; None if there is no
    checkpoint.

    To load a checkpoint, use `named` and `newest_first`, which skip none that cannot be read.
    """
    folder = named(storage)
    if folder is not None:
        return folder
    folders = _list_settled(storage, lambda names: intact_newest_first(storage, names))
    return next(iter(folders), None)


def named(storage: Storage) -> str | None:
    """The folder that `latest` names; None if that does not exist, or `latest` names none."""

    def look(names: list[CheckpointName]) -> list[str]:
        folder = storage.latest()
        if folder is None or layout.parse(folder) not in names:
            return []
        return [folder]

    return next(iter(_list_settled(storage, look)), None)


def newest_first(storage: Storage) -> list[str]:
    """All folders, the last commit first. A manifest that cannot be read does not tell its age: it
    may be the newest, and comes first.
    """

    def look(names: list[CheckpointName]) -> list[str]:
        intact = intact_newest_first(storage, names)
        unreadable = {str(name) for name in names}.difference(intact)
        present = map(str, reversed(committed(storage)))
        return [folder for folder in present if folder in unreadable] + intact

    return _list_settled(storage, look)


def step_of(folder: str | None) -> int | None:
    name = layout.parse(folder) if folder else None
    return name.step if name else None


def of_step(storage: Storage, step: int) -> str | None:
    """The newest generation of a step."""

    def look(names: list[CheckpointName]) -> list[str]:
        return [str(name) for name in names if name.step == step]

    generations = _list_settled(storage, look)
    return generations[-1] if generations else None


def intact_newest_first(storage: Storage, names: list[CheckpointName] | None = None) -> list[str]:
    """Folders whose manifest can be read, the last commit first."""
    if names is None:
        names = committed(storage)
    ages = []
    for name in names:
        content = manifest_if_intact(storage, str(name))
        if content is not None:
            ages.append((content.sequence, name))
    return [str(name) for _, name in sorted(ages, reverse=True)]


def _list_settled(storage: Storage, look: Callable[[list[CheckpointName]], list[str]]) -> list[str]:
    """The result of `look` for a listing of the root.

    An empty result counts only if the next listing is the same: while a step is saved again,
    folders of the first listing may be gone before they are read.
    """
    names = committed(storage)
    for _ in range(TRIES):
        folders = look(names)
        if folders:
            break
        names_before, names = names, committed(storage)
        if names_before == names:
            break
    return folders


def remove_leftovers(storage: Storage) -> None:
    """Removes unfinished folders of writers that have certainly ended, and what an earlier removal
    left.
    """
    leftovers = [name for name in storage.folders() if layout.is_leftover(name)]
    for name in leftovers:
        with suppress(OSError):  # perhaps another user's; continue with the others
            storage.remove(name)
