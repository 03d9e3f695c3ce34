"""Checkpoints in an object store, which has no rename: a folder is a checkpoint once its manifest,
put last, exists.

Every save writes all of its files to a folder of its own, under its final name; no checkpoint refers to
another. Until the manifest exists, the save's marker is next to the folder: an object whose name holds
the folder and the writer. A folder with neither is the rest of an interrupted removal, and the next
removal deletes it. A removal lists the folders before the markers and these before the manifests, so that
it takes no save for such a rest: a save puts its marker first, and deletes it after its manifest.
"""

from __future__ import annotations

import errno
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from .. import layout, manifest
from .base import Stat, parse_latest
from .fsspec_store import request_all

if TYPE_CHECKING:
    from .fsspec_store import FsspecStore

# A request takes some ten milliseconds whatever its size, so read in a few large ones; three blocks
# are in memory at a time.
BLOCK = 16 << 20
PAUSE_S = 0.2


class ObjectBackend:
    """See FileBackend for what the methods promise."""

    is_folder = False
    block = BLOCK

    def __init__(self, store: FsspecStore) -> None:
        self._store = store
        self.root = store.url
        self._lock = threading.Lock()
        self._written: dict[str, set[str]] = {}

    def folders(self) -> list[str]:
        markers, commits = self._list_root()
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

    def begin(self, step: int) -> str:
        """The marker exists before any file does."""
        generation = layout.next_generation(self._store.list()[1], step)
        name = layout.CheckpointName(step, generation, layout.new_token())
        marker = layout.temporary(str(name))
        try:
            self._store.put(marker, b"\n")
        except BaseException:
            layout.abandoned.add(marker)  # the request may have succeeded all the same
            raise
        return marker

    def wait_for(self, folder: str, timeout_s: float) -> None:
        path = folder if layout.target(folder) else f"{folder}/{manifest.NAME}"
        end = time.monotonic() + timeout_s
        while not self._store.exists(path):
            if time.monotonic() > end:
                raise TimeoutError(
                    f"{self.root}/{folder} did not become visible within {timeout_s:g} s"
                )
            time.sleep(PAUSE_S)

    def write(self, folder: str, name: str, content: memoryview) -> None:
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
        self._store.put(path, bytes(content))

    def reuse(self, source: str, name: str, folder: str) -> None:
        raise OSError(errno.EOPNOTSUPP, "an object has one name", f"{self.root}/{source}/{name}")

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
        """Puts the manifest, then `latest`; if that fails, deletes the manifest again."""
        final = _files_folder(folder)
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

    def remove(self, folder: str) -> None:
        layout.abandoned.add(folder)
        if layout.parse(folder):
            removed = [marker for marker, target in self._markers().items() if target == folder]
            removed.append(f"{folder}/{manifest.NAME}")
        else:
            removed = [folder]
        request_all(self._store.delete, removed)
        self.remove_rests()
        layout.abandoned.discard(folder)

    def remove_rests(self) -> None:
        """Deletes the markers of committed checkpoints, and folders that have neither manifest nor
        marker.
        """
        markers, commits = self._list_root()
        unneeded = [marker for marker, target in markers.items() if commits.get(target)]
        for rest, is_committed in commits.items():
            name = layout.parse(rest)
            # Without a token it was copied here, and no save through this backend made it.
            if name and name.token and not is_committed and rest not in markers.values():
                unneeded += [f"{rest}/{file}" for file in self._store.list(rest)[0]]
        request_all(self._store.delete, unneeded)

    def _list_root(self) -> tuple[dict[str, str], dict[str, bool]]:
        """The markers; and the folders of checkpoints, and whether each is committed."""
        folders = [name for name in self._store.list()[1] if layout.parse(name)]
        # In this order: see the module's docstring.
        markers = self._markers()
        paths = [f"{folder}/{manifest.NAME}" for folder in folders]
        return markers, dict(zip(folders, request_all(self._store.exists, paths)))

    def _markers(self) -> dict[str, str]:
        """Those of saves that are running, or ended without removing them, with the folder that each
        writes.
        """
        folders = {name: layout.target(name) for name in self._store.list()[0]}
        return {name: folder for name, folder in folders.items() if folder}

    def free(self) -> None:
        """Unknown."""


def _files_folder(folder: str) -> str:
    """Where the files of a folder are: those of a marker are in the folder that its save writes."""
    return layout.target(folder) or folder
