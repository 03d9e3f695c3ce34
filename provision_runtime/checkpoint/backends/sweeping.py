"""What nothing refers to any more, in a store where checkpoints refer to files of older ones.

A folder without manifest may be one that is being written (its marker is there), or what is left of a removed or unfinished one. Of
the latter, files stay that a checkpoint refers to, or that a save under way may: its marker tells its parent's files.

Who may be wrong about whom: a save puts its marker, then looks whether its parent's manifest is there, and at its end puts its manifest,
then deletes its marker. So a removal that deletes the manifest first, then looks for markers, and after that for manifests, sees
the save in one form or the other, or the save sees that its parent is gone. Nobody waits for anybody, and no clock is asked.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Iterator, Set, Tuple

from .. import layout, manifest
from .fsspec_store import each

if TYPE_CHECKING:
    from .fsspec_store import Store

# A folder and a file in it.
Place = Tuple[str, str]
Needed = Set[Place]


def sweep(store: Store) -> None:
    """Delete what nothing refers to. Where a manifest cannot be read, so that nobody knows what it refers to, nothing is deleted."""
    try:
        going = unneeded(store)
    except manifest.CheckpointError as error:
        warnings.warn(
            f"files of removed checkpoints in {store.url} were left there: {error}", stacklevel=2
        )
        return
    each(store.delete, going)


def unneeded(store: Store) -> list[str]:
    """Names of objects: the files in folders that hold no checkpoint, and markers of saves that were committed.

    Raises CheckpointError where a manifest cannot be read.
    """
    seen = commits(store)
    spent = [marker for marker, folder in markers(store).items() if seen.get(folder)]
    empty = {
        folder for folder, is_committed in seen.items() if not is_committed and is_ours(folder)
    }
    return spent + (_unneeded_files(store, empty) if empty else [])


def commits(store: Store) -> dict[str, bool]:
    """The folders of checkpoints, and whether each is committed."""
    folders = [name for name in store.list()[1] if layout.parse(name)]
    return dict(
        zip(folders, each(lambda folder: store.exists(f"{folder}/{manifest.NAME}"), folders))
    )


def is_ours(folder: str) -> bool:
    """Whether only a save through this backend has made it: no folder that was copied here may be taken for a leftover."""
    name = layout.parse(folder)
    return bool(name and name.token)


def markers(store: Store) -> dict[str, str]:
    """The markers of saves that are under way, or ended without a word; with the folder that each writes to."""
    targets = {name: layout.target(name) for name in store.list()[0]}
    return {name: folder for name, folder in targets.items() if folder}


def marker_of(parent: str | None, content: bytes) -> bytes:
    """What a save's marker says: whose files it may refer to, by that one's manifest."""
    return f"{parent or ''}\n".encode() + content


def _unneeded_files(store: Store, empty: set[str]) -> list[str]:
    before, _ = _needed_by_checkpoints(store, empty)
    by_saves, writing = _needed_by_saves(store, empty)
    after, committed = _needed_by_checkpoints(store, empty)
    needed = before | by_saves | after
    going = sorted(empty - writing - committed)
    places = [
        (folder, name)
        for folder, names in zip(going, each(lambda folder: store.list(folder)[0], going))
        for name in names
    ]
    return [f"{folder}/{name}" for folder, name in places if (folder, name) not in needed]


def _needed_by_checkpoints(store: Store, empty: set[str]) -> tuple[Needed, set[str]]:
    """What committed checkpoints refer to in these folders, and which of these are committed meanwhile."""
    needed: Needed = set()
    committed = set()
    folders = [name for name in store.list()[1] if layout.parse(name)]
    for folder, content in zip(
        folders, each(lambda folder: _read(store, f"{folder}/{manifest.NAME}"), folders)
    ):
        if content is not None:
            committed.add(folder)
            needed.update(_places(folder, content, f"{store.url}/{folder}/{manifest.NAME}", empty))
    return needed, committed


def _needed_by_saves(store: Store, empty: set[str]) -> tuple[Needed, set[str]]:
    """What saves under way may refer to, and the folders that they write to."""
    needed: Needed = set()
    there = markers(store)
    for name, content in zip(there, each(lambda name: _read(store, name), list(there))):
        parent, _, said = (content or b"\n").partition(b"\n")
        if parent and said:
            needed.update(_places(parent.decode(), said, f"{store.url}/{name}", empty))
    return needed, set(there.values())


def _places(folder: str, content: bytes, address: str, within: set[str]) -> Iterator[Place]:
    for entry in manifest.loads(content, address).files:
        if (entry.home or folder) in within:
            yield entry.home or folder, entry.name


def _read(store: Store, name: str) -> bytes | None:
    try:
        return store.get(name)
    except FileNotFoundError:
        return None
