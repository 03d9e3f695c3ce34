"""Which checkpoints a root holds, which of them a step's number or `latest` means, and what dead
writers left behind.

Works without torch.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from . import layout, manifest
from .errors import CheckpointError, DamagedFile, NoCheckpoint, Vanished

if TYPE_CHECKING:
    from collections.abc import Callable

    from .layout import CheckpointName
    from .manifest import Manifest
    from .storage import Step, Storage

T = TypeVar("T")

# How often to list a root that changes each time.
TRIES = 100
LATEST = "latest"
REFUSE, PREVIOUS = "refuse", "previous"


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

    To load a checkpoint, use `choose`, which skips none that cannot be read.
    """
    return _named(storage) or next(
        iter(_settled(storage, lambda names: intact_newest_first(storage, names))), None
    )


def _named(storage: Storage) -> str | None:
    """The folder that `latest` names; None if that does not exist, or `latest` names none."""

    def look(names: list[CheckpointName]) -> str | None:
        folder = storage.latest()
        return folder if folder and layout.parse(folder) in names else None

    return _settled(storage, look)


def _newest_first(storage: Storage) -> list[str]:
    """All folders, the last commit first. A manifest that cannot be read does not tell its age: it
    may be the newest, and comes first.
    """

    def look(names: list[CheckpointName]) -> list[str]:
        intact = intact_newest_first(storage, names)
        unreadable = {str(name) for name in names}.difference(intact)
        present = map(str, reversed(committed(storage)))
        return [folder for folder in present if folder in unreadable] + intact

    return _settled(storage, look)


def step_of(folder: str | None) -> int | None:
    name = layout.parse(folder) if folder else None
    return name.step if name else None


def intact_newest_first(storage: Storage, names: list[CheckpointName] | None = None) -> list[str]:
    """Folders whose manifest can be read, the last commit first."""
    ages = []
    for name in committed(storage) if names is None else names:
        content = manifest_if_intact(storage, str(name))
        if content is not None:
            ages.append((content.sequence, name))
    return [str(name) for _, name in sorted(ages, reverse=True)]


def _settled(storage: Storage, look: Callable[[list[CheckpointName]], T]) -> T:
    """The result of `look` for a listing of the root.

    An empty result counts only if the next listing is the same: while a step is saved again,
    folders of the first listing may be gone before they are read.
    """
    names = committed(storage)
    for _ in range(TRIES):
        result = look(names)
        names_before, names = names, [] if result else committed(storage)
        if result or names_before == names:
            break
    return result


def remove_leftovers(storage: Storage) -> None:
    """Removes unfinished folders of writers that have certainly ended, and what an earlier removal
    left.
    """
    for name in filter(layout.is_leftover, storage.folders()):
        with suppress(OSError):  # perhaps another user's; continue with the others
            storage.remove(name)


# Which checkpoint a step means


def step_number(step: Step) -> int | None:
    """None for the latest. Raises ValueError if it is neither a number nor `latest`."""
    return None if step == LATEST else layout.check_step(step)


def choose(storage: Storage, step: Step, on_damage: str) -> list[str]:
    """The folders to try, in order.

    With on_damage="previous", the folders that were committed before follow, newest first.
    """
    number = step_number(step)
    if number is None:
        folder = _named(storage)
        first = [folder] if folder else _newest_first(storage)[:1]
    else:
        # The newest generation.
        first = _settled(
            storage, lambda names: [str(name) for name in names if name.step == number]
        )
        first = first[-1:]
    if not first or on_damage != PREVIOUS:
        return first
    older = (folder for folder in _newest_first(storage) if folder not in first)
    return first + [folder for folder in older if number is None or (step_of(folder) or 0) < number]


def folder_of(storage: Storage, step: Step) -> str:
    """The folder of a step. Raises NoCheckpoint."""
    folders = choose(storage, step, REFUSE)
    if not folders:
        raise NoCheckpoint(describe_absence(storage, step))
    return folders[0]


def read_step(storage: Storage, step: Step) -> tuple[str, Manifest]:
    """The folder of a step and its manifest; looks again if it was replaced meanwhile.

    Raises NoCheckpoint; CheckpointError if the manifest cannot be read.
    """
    for _ in range(TRIES):
        folder = folder_of(storage, step)
        try:
            return folder, read_manifest(storage, folder)
        except CheckpointError:
            if folder in storage.folders():
                raise
    raise Vanished(f"step {step} in {storage.root} was replaced {TRIES} times meanwhile")


def describe_absence(storage: Storage, step: Step) -> str:
    which = "" if step == LATEST else f" of step {step}"
    numbers = ", ".join(str(name.step) for name in steps(storage))
    present = "it has no committed step"
    if numbers:
        present = f"it has step{'s' if ',' in numbers else ''} {numbers}"
    return f"{storage.root} has no checkpoint{which}: {present}"
