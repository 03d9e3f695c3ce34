"""Which checkpoints a root holds, which of them is the latest, and what dead writers left. Works without torch."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING

from . import layout, manifest

if TYPE_CHECKING:
    from collections.abc import Callable

    from .backends import Backend

# How often a root is listed that changes each time.
TRIES = 100


def committed(backend: Backend) -> list[layout.Name]:
    """By step and generation. Of a step that is being saved once more there may be several for a moment."""
    return sorted(name for name in map(layout.parse, backend.folders()) if name)


def steps(backend: Backend) -> list[layout.Name]:
    """The newest generation of every step, in order of steps."""
    return list({name.step: name for name in committed(backend)}.values())


def read_manifest(backend: Backend, folder: str) -> manifest.Manifest:
    """Raises DamagedFile where it is missing, not what was committed, or of another step than its folder."""
    path = f"{backend.root}/{folder}/{manifest.NAME}"
    try:
        found = manifest.loads(backend.read(folder, manifest.NAME), path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise manifest.DamagedFile(path, "it is missing") from error
    name = layout.parse(folder)
    if name is not None and name.step != found.step:
        raise manifest.DamagedFile(path, f"it is of step {found.step}, not {name.step}")
    return found


def manifest_if_whole(backend: Backend, folder: str) -> manifest.Manifest | None:
    try:
        return read_manifest(backend, folder)
    except (manifest.CheckpointError, OSError):
        return None


def latest(backend: Backend) -> str | None:
    """The folder that `latest` names, or, where it names none, the one of those that can be read that was committed last; None where
    there is none. For those that go on from it: whoever reads its content must hear of damage (`named`, `newest_first`)."""
    try:
        first = named(backend)
    except manifest.DamagedFile:
        first = None
    return first or next(iter(_settled(backend, lambda present: by_age(backend, present))), None)


def named(backend: Backend) -> str | None:
    """The folder that `latest` names; None where there is no such folder, or no `latest`. Raises DamagedFile where that is damaged."""

    def look(present: list[layout.Name]) -> list[str]:
        name = backend.latest()
        return [name] if name is not None and layout.parse(name) in present else []

    return next(iter(_settled(backend, look)), None)


def newest_first(backend: Backend) -> list[str]:
    """All folders in the reverse order of their commits. Where a manifest cannot be read, that is known only from a checkpoint that was
    made after it; without one it may be the newest, and comes before all others."""
    return _settled(backend, lambda present: _newest_first(backend, present))


def _newest_first(backend: Backend, present: list[layout.Name]) -> list[str]:
    found = {str(name): manifest_if_whole(backend, str(name)) for name in present}
    there = {str(name) for name in committed(backend)} if None in found.values() else set()
    followers: dict[str, int] = {}
    for known in found.values():
        if known and known.parent:
            followers[known.parent] = min(
                known.sequence, followers.get(known.parent, known.sequence)
            )
    ages = {
        folder: known.sequence if known else followers.get(folder, math.inf) - 0.5
        for folder, known in found.items()
    }
    kept = [folder for folder, known in found.items() if known or folder in there]
    return sorted(kept, key=lambda folder: (ages[folder], layout.parse(folder)), reverse=True)


def step_of(folder: str | None) -> int | None:
    name = layout.parse(folder) if folder else None
    return name.step if name else None


def of_step(backend: Backend, step: int) -> str | None:
    """The newest generation of a step."""
    found = _settled(backend, lambda present: [str(name) for name in present if name.step == step])
    return found[-1] if found else None


def by_age(backend: Backend, present: list[layout.Name] | None = None) -> list[str]:
    """Folders whose manifest is whole, in the reverse order of their commits."""
    names = committed(backend) if present is None else present
    found = {str(name): manifest_if_whole(backend, str(name)) for name in names}
    whole = [
        (known.sequence, layout.parse(folder), folder) for folder, known in found.items() if known
    ]
    return [folder for _, _, folder in sorted(whole, reverse=True)]


def _settled(backend: Backend, look: Callable[[list[layout.Name]], list[str]]) -> list[str]:
    """What is found in a listing; nothing only where the next one is the same: while a step is saved again, what the first names may
    be gone before it is read."""
    present = committed(backend)
    for _ in range(TRIES):
        found = look(present)
        before, present = present, present if found else committed(backend)
        if before == present:
            break
    return found


def clear_leftovers(backend: Backend) -> list[str]:
    """Remove what writers that have certainly ended did not finish, and what could not be removed before; the names."""
    gone = [name for name in backend.folders() if layout.is_leftover(name)]
    for name in gone:
        with suppress(OSError):  # another user's, perhaps: the others can go
            backend.remove(name)
    return gone
