"""Checkpoints in an object store, which has no rename: a folder is a checkpoint once its manifest,
put last, exists.

Every save writes to a folder of its own, under its final name. Until the manifest exists, the
save's marker is next to it: an object whose name holds the folder and the writer. An unchanged file
is a reference to the folder that holds it, so removing a checkpoint leaves the files that others
refer to; `sweep` deletes them when nothing refers to them any more.

A folder without manifest is either being written (its marker exists), or the rest of a removed or
unfinished checkpoint. Of such a rest, the files stay that a checkpoint refers to, or that a running
save may refer to: its marker holds its parent's manifest.

Why this is safe: a save puts its marker, then checks that its parent's manifest exists; at its end
it puts its manifest, then deletes its marker. A removal deletes the manifest first, then looks for
markers, and after that for manifests. So either the removal sees the save in one form or the other,
or the save sees that its parent is gone. No process waits for another, and no clock is read.
"""

from __future__ import annotations

import errno
import threading
import time
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Iterator, Set, Tuple

from .. import layout, manifest
from ..errors import CheckpointError, DamagedFile
from .base import Stat, Traits, parse_latest
from .fsspec_store import request_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .fsspec_store import FsspecStore

# A request takes some ten milliseconds whatever its size, so read in a few large ones; three blocks
# are in memory at a time.
BLOCK = 16 << 20
PAUSE_S = 0.2
# A folder and a file in it.
FilePlace = Tuple[str, str]
FilePlaces = Set[FilePlace]


class ObjectBackend:
    def __init__(self, store: FsspecStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._written: dict[str, set[str]] = {}
        self.traits = Traits(
            rename=False, links="reference", sync=False, shared=store.is_shared, block=BLOCK
        )

    @property
    def root(self) -> str:
        return self._store.url

    def folders(self) -> list[str]:
        markers, commits = list_root(self._store)
        committed = [folder for folder, is_committed in commits.items() if is_committed]
        # The marker of a committed checkpoint is about to be deleted.
        return committed + [name for name, folder in markers.items() if folder not in committed]

    def files(self, folder: str) -> list[str]:
        return self._store.list(_files_folder(folder))[0]

    def stat(self, folder: str, name: str) -> Stat:
        home = _files_folder(folder)
        return Stat(self._store.size(f"{home}/{name}"), 1, (home, name))

    def read(self, folder: str, name: str) -> bytes:
        return self._store.get(f"{_files_folder(folder)}/{name}")

    def read_into(self, folder: str, name: str, offset: int, buffer: memoryview) -> int:
        if not len(buffer):
            return 0
        path = f"{_files_folder(folder)}/{name}"
        content = self._store.get(path, offset, offset + len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def begin(self, step: int, parent: str | None) -> str:
        """The marker exists before any file does, and before the ranks check that the parent still
        exists.
        """
        generation = layout.next_generation(self._store.list()[1], step)
        name = layout.CheckpointName(step, generation, layout.new_token())
        marker = layout.temporary(str(name))
        parent_manifest = b""
        if parent is not None:
            with suppress(FileNotFoundError):
                parent_manifest = self.read(parent, manifest.NAME)
        try:
            self._store.put(marker, marker_content(parent, parent_manifest))
        except BaseException:
            layout.abandoned.add(marker)  # the request may have succeeded all the same
            raise
        return marker

    def wait_for(self, folder: str, timeout_s: float) -> None:
        path = folder if layout.target(folder) else f"{folder}/{manifest.NAME}"
        end = time.monotonic() + timeout_s
        while not self._store.exists(path):
            if time.monotonic() > end:
                hint = "" if self.traits.shared else ": it is the memory of another process"
                raise TimeoutError(
                    f"{self.root}/{folder} did not become visible within {timeout_s:g} s{hint}"
                )
            time.sleep(PAUSE_S)

    def write(self, folder: str, name: str, parts: Sequence[memoryview]) -> None:
        """One request, so the object exists whole or not at all.

        Raises FileExistsError only for what this process wrote: if two put the same name, both
        succeed, with the same content.
        """
        path = f"{_files_folder(folder)}/{name}"
        with self._lock:
            written = self._written.setdefault(folder, set())
            if name in written:
                raise FileExistsError(path)
            written.add(name)
        self._store.put(path, b"".join(parts))

    def reuse(self, source: str, name: str, folder: str) -> str:
        self._store.size(f"{source}/{name}")
        return source

    def discard(self, folder: str, name: str) -> None:
        self._store.delete(f"{_files_folder(folder)}/{name}")

    def replace(self, folder: str, name: str, content: bytes, same: str | None = None) -> None:
        self._store.put(f"{_files_folder(folder)}/{name}", content)

    def drop_cache(self, folder: str, name: str) -> None:
        """Nothing is cached."""

    def linked(self) -> dict[str, str]:
        return {}

    def flush(self, folder: str) -> None:
        """Objects are durable once they are put, so this only forgets their names."""
        with self._lock:
            self._written.pop(folder, None)

    def commit(self, folder: str, step: int, content: bytes) -> str:
        """Puts the manifest, then `latest`; if that fails, deletes the manifest again.

        Raises FileNotFoundError if a file was deleted that the manifest refers to.
        """
        final = _files_folder(folder)
        self._check_references(manifest.loads(content, f"{self.root}/{final}/{manifest.NAME}"))
        try:
            self._store.put(f"{final}/{manifest.NAME}", content)
            self._store.put(layout.LATEST, layout.pointer(final))
        except BaseException:
            layout.abandoned.add(final)
            self._store.delete(f"{final}/{manifest.NAME}")
            layout.abandoned.discard(final)
            raise
        with suppress(OSError):  # the marker has no meaning any more; the next removal deletes it
            self._store.delete(folder)
        return final

    def latest(self) -> str | None:
        try:
            content = self._store.get(layout.LATEST)
        except FileNotFoundError:
            return None
        return parse_latest(content, self.root)

    def remove(self, *folders: str) -> None:
        layout.abandoned.update(folders)
        markers = [folder for folder in folders if layout.target(folder)]
        for marker, folder in find_markers(self._store.list()[0]).items():
            if folder in folders:
                markers.append(marker)
        request_all(self._store.delete, markers)
        manifests = [f"{folder}/{manifest.NAME}" for folder in folders if layout.parse(folder)]
        request_all(self._store.delete, manifests)
        sweep(self._store)
        layout.abandoned.difference_update(folders)

    def address(self, home: str, name: str) -> str:
        """Absolute, since stores know no "..": torch's FsspecReader then reads it from any
        checkpoint.
        """
        return f"{self._store.path}/{home}/{name}"

    def free(self) -> None:
        """Unknown."""

    def _check_references(self, content: manifest.Manifest) -> None:
        homes = sorted({entry.home for entry in content.files if entry.home})
        present: FilePlaces = set()
        for home, names in zip(homes, request_all(self.files, homes)):
            present.update((home, name) for name in names)
        for entry in content.files:
            if entry.home and (entry.home, entry.name) not in present:
                problem = "an older checkpoint's file was deleted while this one was saved"
                path = f"{self.root}/{entry.home}/{entry.name}"
                raise FileNotFoundError(errno.ENOENT, problem, path)


def _files_folder(folder: str) -> str:
    """Where the files of a folder are: those of a marker are in the folder that its save writes."""
    return layout.target(folder) or folder


def sweep(store: FsspecStore) -> None:
    """Deletes what nothing refers to.

    If a manifest cannot be read, it is unknown what it refers to, so nothing is deleted.
    """
    try:
        names = find_unneeded(store)
    except CheckpointError as error:
        warnings.warn(f"files of removed checkpoints stay in {store.url}: {error}", stacklevel=2)
        return
    request_all(store.delete, names)


def find_unneeded(store: FsspecStore) -> list[str]:
    """Objects to delete: files in folders that hold no checkpoint, and markers of committed saves.

    Raises CheckpointError if a manifest cannot be read.
    """
    markers, commits = list_root(store)
    names = [marker for marker, folder in markers.items() if commits.get(folder)]
    uncommitted = set()
    for folder, is_committed in commits.items():
        name = layout.parse(folder)
        # Without a token it was copied here, and no save through this backend made it.
        if not is_committed and name is not None and name.token:
            uncommitted.add(folder)
    if uncommitted:
        names += _find_unneeded_files(store, uncommitted)
    return names


def list_root(store: FsspecStore) -> tuple[dict[str, str], dict[str, bool]]:
    """The markers with the folders that they name; and the folders of checkpoints, and whether each
    is committed.
    """
    objects, names = store.list()
    folders = [name for name in names if layout.parse(name)]
    are_committed = request_all(lambda folder: store.exists(f"{folder}/{manifest.NAME}"), folders)
    return find_markers(objects), dict(zip(folders, are_committed))


def find_markers(objects: Iterable[str]) -> dict[str, str]:
    """The markers of saves that are running, or ended without removing them; with the folder that
    each writes.
    """
    folders = {name: layout.target(name) for name in objects}
    return {name: folder for name, folder in folders.items() if folder}


def marker_content(parent: str | None, parent_manifest: bytes) -> bytes:
    """The parent and its manifest: the files that the save may refer to."""
    return f"{parent or ''}\n".encode() + parent_manifest


def _find_unneeded_files(store: FsspecStore, uncommitted: set[str]) -> list[str]:
    # The order matters: see the module's docstring.
    needed_before, _ = _needed_by_checkpoints(store, uncommitted)
    # What running saves may refer to, and the folders that they write.
    needed: FilePlaces = set()
    markers = find_markers(store.list()[0])
    contents = request_all(lambda name: _get(store, name), list(markers))
    for name, content in zip(markers, contents):
        parent, _, parent_manifest = (content or b"\n").partition(b"\n")
        if parent and parent_manifest:
            address = f"{store.url}/{name}"
            needed.update(_references(parent.decode(), parent_manifest, address, uncommitted))
    needed_by_saves, being_written = needed, set(markers.values())
    needed_after, committed = _needed_by_checkpoints(store, uncommitted)
    needed = needed_before | needed_by_saves | needed_after
    folders = sorted(uncommitted - being_written - committed)
    unneeded = []
    for folder, names in zip(folders, request_all(lambda folder: store.list(folder)[0], folders)):
        for name in names:
            if (folder, name) not in needed:
                unneeded.append(f"{folder}/{name}")
    return unneeded


def _needed_by_checkpoints(
    store: FsspecStore, uncommitted: set[str]
) -> tuple[FilePlaces, set[str]]:
    """What committed checkpoints refer to in these folders, and all folders that are committed by
    now.
    """
    needed: FilePlaces = set()
    committed = set()
    folders = [name for name in store.list()[1] if layout.parse(name)]
    manifests = request_all(lambda folder: _get(store, f"{folder}/{manifest.NAME}"), folders)
    for folder, content in zip(folders, manifests):
        if content is not None:
            committed.add(folder)
            address = f"{store.url}/{folder}/{manifest.NAME}"
            needed.update(_references(folder, content, address, uncommitted))
    return needed, committed


def _references(
    folder: str, content: bytes, address: str, uncommitted: set[str]
) -> Iterator[FilePlace]:
    """Files in the uncommitted folders that a manifest refers to."""
    for entry in manifest.loads(content, address).files:
        home = entry.home or folder
        if home in uncommitted:
            yield home, entry.name


def _get(store: FsspecStore, name: str) -> bytes | None:
    try:
        if store.size(name) > 2 * manifest.MAX_BYTES:  # a marker has more than its manifest
            raise DamagedFile(f"{store.url}/{name}", "it is too big for a manifest")
        return store.get(name)
    except FileNotFoundError:
        return None
