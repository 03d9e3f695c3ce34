"""Checkpoints in a store of objects, which has no rename: a folder is a checkpoint once its manifest is there, which is put last.

Every save writes to a folder that nobody else writes to, under its final name. Beside it lies the save's marker, an object whose name
tells the folder and the writer, until the manifest is there. An unchanged file is a reference to the folder that holds it, so
removing a checkpoint leaves the files that others refer to: sweeping.py.
"""

from __future__ import annotations

import errno
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from .. import layout, manifest
from . import sweeping
from .fsspec_store import each
from .latest_file import named_by
from .traits import Stat, Traits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .fsspec_store import Store

# A request takes some ten milliseconds whatever it asks for, so few large ones are made; three are held at a time.
BLOCK = 16 << 20
PAUSE_S = 0.2


class ObjectBackend:
    def __init__(self, store: Store) -> None:
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
        committed = [
            folder for folder, is_committed in sweeping.commits(self._store).items() if is_committed
        ]
        # The marker of a committed one is only not deleted yet.
        return committed + [
            marker
            for marker, folder in sweeping.markers(self._store).items()
            if folder not in committed
        ]

    def files(self, folder: str) -> list[str]:
        return self._store.list(_place(folder))[0]

    def size(self, folder: str, name: str) -> int:
        return self._store.size(f"{_place(folder)}/{name}")

    def stat(self, folder: str, name: str) -> Stat:
        return Stat(self.size(folder, name), 1, (_place(folder), name))

    def read(self, folder: str, name: str) -> bytes:
        return self._store.get(f"{_place(folder)}/{name}")

    def read_into(self, folder: str, name: str, offset: int, buffer: memoryview) -> int:
        if not len(buffer):
            return 0
        content = self._store.get_range(f"{_place(folder)}/{name}", offset, offset + len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def has(self, folder: str, name: str, offset: int, parts: Sequence[memoryview]) -> bool | None:
        """Not without fetching it."""

    def begin(self, step: int, parent: str | None) -> str:
        """The marker is there before any file is, and before the ranks look whether the parent is still there."""
        folders = map(layout.parse, self._store.list()[1])
        taken = [name.generation for name in folders if name and name.step == step]
        name = layout.Name(step, max(taken, default=-1) + 1, layout.new_token())
        marker = layout.temporary(str(name))
        try:
            self._store.put(marker, sweeping.marker_of(parent, self._manifest_or_nothing(parent)))
        except BaseException:  # it may be there all the same
            layout.abandoned.add(marker)
            raise
        return marker

    def wait_for(self, folder: str, deadline_s: float) -> None:
        sign = folder if layout.target(folder) else f"{folder}/{manifest.NAME}"
        end = time.monotonic() + deadline_s
        while not self._store.exists(sign):
            if time.monotonic() > end:
                hint = "" if self.traits.shared else ": it is the memory of another process"
                raise TimeoutError(
                    f"{self.root}/{folder} could not be seen within {deadline_s:g} s{hint}"
                )
            time.sleep(PAUSE_S)

    def write(self, folder: str, name: str, parts: Sequence[memoryview]) -> None:
        """One request, so the object is there whole or not at all. Only what this process wrote is known to be taken: of two that
        put the same name both succeed, with the same content."""
        path = f"{_place(folder)}/{name}"
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
        self._store.delete(f"{_place(folder)}/{name}")

    def flush(self, folder: str) -> None:
        """Objects are durable when they are put. Their names are told by their content, so that they were written is of no use any more."""
        with self._lock:
            self._written.pop(folder, None)

    def commit(self, folder: str, step: int, content: bytes) -> str:
        """The manifest, then `latest`; where that fails, the manifest is taken back. Raises FileNotFoundError where somebody deleted a
        file that the manifest refers to."""
        place = _place(folder)
        self._require(manifest.loads(content, f"{self.root}/{place}/{manifest.NAME}"))
        try:
            self._store.put(f"{place}/{manifest.NAME}", content)
            self._store.put(layout.LATEST, layout.pointer(place))
        except BaseException:
            layout.abandoned.add(place)
            self._store.delete(f"{place}/{manifest.NAME}")
            layout.abandoned.discard(place)
            raise
        with suppress(OSError):  # it says nothing any more, and the next removal takes it along
            self._store.delete(folder)
        return place

    def latest(self) -> str | None:
        try:
            content = self._store.get(layout.LATEST)
        except FileNotFoundError:
            return None
        return named_by(content, self.root)

    def remove(self, *folders: str) -> None:
        markers = [folder for folder in folders if layout.target(folder)]
        layout.abandoned.update(folders)
        spent = [
            marker for marker, folder in sweeping.markers(self._store).items() if folder in folders
        ]
        each(self._store.delete, [*markers, *spent])
        each(
            self._store.delete,
            [f"{folder}/{manifest.NAME}" for folder in folders if layout.parse(folder)],
        )
        sweeping.sweep(self._store)
        layout.abandoned.difference_update(folders)

    def address(self, home: str, name: str) -> str:
        """Absolute, since stores know no "..": torch's FsspecReader then reads it wherever the checkpoint is named from."""
        return f"{self._store.path}/{home}/{name}"

    def free(self) -> None:
        """Stores do not say."""

    def _manifest_or_nothing(self, folder: str | None) -> bytes:
        if folder is None:
            return b""
        try:
            return self.read(folder, manifest.NAME)
        except FileNotFoundError:
            return b""

    def _require(self, content: manifest.Manifest) -> None:
        homes = sorted({entry.home for entry in content.files if entry.home})
        present = {
            (home, name) for home, names in zip(homes, each(self.files, homes)) for name in names
        }
        for entry in content.files:
            if entry.home and (entry.home, entry.name) not in present:
                problem = "an older checkpoint's file was deleted while this one was saved"
                raise FileNotFoundError(
                    errno.ENOENT, problem, f"{self.root}/{entry.home}/{entry.name}"
                )


def _place(folder: str) -> str:
    """Where the files of a folder lie: a temporary one's are in the folder that its save is to make."""
    return layout.target(folder) or folder
