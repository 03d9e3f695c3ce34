"""One rank's part of a checkpoint: a few threads serialize, hash and write files, and link those
that the parent checkpoint has.

A file is named by the hashes of its content, so equal content is one file, and what did not change
is recognized by its hash. A file holds one piece, or a pack of small ones.
"""

from __future__ import annotations

import os
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, List, Tuple

from . import hashes
from .items import MIN_FILE_BYTES, Item, packs, pieces
from .manifest import FileEntry, Manifest, Record, record_digest
from .memory import StagingMemory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .storage import Storage

SUFFIX = ".distcp"
# A file is linked by at most so many saves in a row, then its content is written again. A hard link
# is one file with many names: a bit that rots in it damages every checkpoint that has it, and no
# checkpoint that was saved after the next copy. The limit differs from file to file, from half of
# this on, so that no save writes everything again.
MAX_LINKS = 16
# Hashing and writing overlap (hashlib and write() release the interpreter's lock). Each worker
# holds one piece of at most items.MAX_PIECE_BYTES: 224 MiB if all are staged from a GPU.
WORKERS = 7


# A file, and what it holds.
WrittenFile = Tuple[FileEntry, List[Tuple["Item", Record]]]


class SaveAborted(Exception):
    """The save failed elsewhere."""


@dataclass
class ByteCount:
    """Bytes of this rank. The total is known before anything is written."""

    total: int = 0
    written: int = 0
    linked: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, written: int = 0, linked: int = 0) -> None:
        with self._lock:
            self.written += written
            self.linked += linked


def may_link(entry: FileEntry) -> bool:
    """Whether one more save may link the file instead of writing its content again."""
    spread = MAX_LINKS // 2 + 1
    return entry.links < MAX_LINKS - zlib.crc32(entry.name.encode()) % spread


def hashing_threads() -> int:
    """How many threads hash at a time: more than this rank's processors would only take turns."""
    processors = len(os.sched_getaffinity(0))
    ranks_of_host = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    return min(WORKERS, max(2, processors // ranks_of_host))


class Writer:
    """Writes items into one folder. Make one per save; `run` may be called from any thread.

    parent, content: the checkpoint whose files may be linked, by the hashes of their content.
    """

    def __init__(
        self, storage: Storage, folder: str, parent: str | None, content: Manifest | None
    ) -> None:
        self.count = ByteCount()
        self._storage = storage
        self._folder = folder
        self._parent = parent
        self._linkable = {}
        for entry in content.files if content else ():
            if may_link(entry):
                self._linkable[hashes.content_hash(entry.digest), entry.size] = entry
        self._stop = threading.Event()
        self._staging = StagingMemory()

    def stop(self) -> None:
        """Makes `run` raise SaveAborted soon."""
        self._stop.set()

    def run(self, items: Sequence[Item]) -> list[WrittenFile]:
        """Writes all items; every file is durable on return.

        Raises what the first failing thread raised; removes nothing.
        """
        self.count.total = sum(item.bytes for item in items)
        tensors = [piece for item in items if not item.is_object for piece in pieces(item)]
        # An object's size may change from save to save, which must not cut other packs of tensors.
        objects = [item for item in items if item.is_object]
        # One more than the hashing threads, since the syncs come last. More would only take the
        # processors from those that hash (measured: 7 were slower than 3 on 2 processors).
        workers = min(WORKERS, hashing_threads() + 1)
        with ThreadPoolExecutor(workers, thread_name_prefix="provision-checkpoint") as pool:
            try:
                files = chain(packs(tensors), packs(objects))
                futures = [pool.submit(self._write, pack) for pack in files]
                for future in as_completed(futures):
                    future.result()
            except BaseException:
                self._stop.set()  # the others raise SaveAborted, after this error
                raise
        self._storage.flush(self._folder)
        return [future.result() for future in futures]

    def _write(self, pack: Sequence[Item]) -> WrittenFile:
        """Writes or links the file of a pack."""
        if self._stop.is_set():
            raise SaveAborted()
        self._staging.clear()
        parts = [
            memoryview(piece.data) if piece.is_object else self._staging.bytes_of(piece.data)
            for piece in pack
        ]
        content = parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
        content_hash = hashes.new(content).hexdigest()
        entry = self._link(content_hash, content) or self._write_file(content_hash, content)
        records = []
        at = 0
        for piece, part in zip(pack, parts):
            kind = piece.dtype, piece.shape, piece.offsets, piece.sizes
            is_packed = len(part) < MIN_FILE_BYTES
            digest = record_digest(part if is_packed else entry.digest.encode(), *kind)
            record = Record(entry.name, at, len(part), digest, piece.offsets, piece.sizes)
            records.append((piece, record))
            at += len(part)
        return entry, records

    def _write_file(self, content_hash: str, content: memoryview) -> FileEntry:
        digest = hashes.digest(content_hash, content)
        entry = FileEntry(digest + SUFFIX, len(content), digest)
        try:
            self._storage.write(self._folder, entry.name, content)
        except FileExistsError:
            # This save has the same content twice: the first writer completes the file.
            self.count.add(linked=len(content))
        else:
            self.count.add(written=len(content))
        return entry

    def _link(self, content_hash: str, content: memoryview) -> FileEntry | None:
        """Makes a file of the parent part of the folder.

        Returns None if there is none of this content, or it cannot be linked (the file system has no
        links, the file too many, or the parent was just removed).
        """
        entry = self._linkable.get((content_hash, len(content)))
        if entry is None or self._parent is None:
            return None
        try:
            if self._storage.stat(self._parent, entry.name).size != entry.size:
                return None
            self._storage.reuse(self._parent, entry.name, self._folder)
        except OSError:
            return None
        self.count.add(linked=len(content))
        return replace(entry, links=entry.links + 1)
