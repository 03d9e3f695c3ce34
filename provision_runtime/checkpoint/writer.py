"""One rank's part of a checkpoint: a few threads serialize, hash and write files, and link those
that the parent checkpoint has.

A file is named by the hashes of its content, so equal content is one file, and what did not change
is recognized by its hash. A file holds one piece, or a pack of small ones.
"""

from __future__ import annotations

import os
import threading
import zlib
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from . import corrupt_files, hashes
from .items import packs, pieces
from .manifest import FileEntry, Record
from .serialize import StagingMemory, serialize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .backends import Backend
    from .items import Item
    from .manifest import Manifest
    from .serialize import Serialized

SUFFIX = ".distcp"
# A file is linked by at most so many saves in a row, then its content is written again. A hard link
# is one file with many names: a bit that rots in it damages every checkpoint that has it, and no
# checkpoint that was saved after the next copy. The limit differs from file to file, from half of
# this on, so that no save writes everything again.
MAX_LINKS = 16
# Hashing and writing overlap (hashlib and write() release the interpreter's lock). Each worker
# holds one piece of at most items.MAX_PIECE_BYTES: 224 MiB if all are staged from a GPU.
WORKERS = 7
# What goes to an object store is held twice: the staged pieces are joined into one request body.
OBJECT_STORE_WORKERS = 3


class SaveAborted(Exception):
    """The save failed elsewhere."""


@dataclass(frozen=True)
class RankPart:
    """What one rank contributes to the manifest."""

    files: list[FileEntry]
    records: list[tuple[Item, Record]]


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


class ParentIndex:
    """What the parent checkpoint holds, by the hashes of its content: an incremental save may link
    it.
    """

    def __init__(self, folder: str | None, parent: Manifest | None) -> None:
        self.folder = folder
        self._entries: dict[str, FileEntry] = {}
        if parent:
            # A file of several records is known by the hash that `new` computes.
            self._entries = {hashes.content_hash(entry.digest): entry for entry in parent.files}
            entries = {entry.name: entry for entry in parent.files}
            for _, record in parent.records():
                if record.size == entries[record.file].size:
                    self._entries[record.digest] = entries[record.file]

    def find(self, digest: str, size: int) -> FileEntry | None:
        """The file of this hash, or whose only record has this digest."""
        entry = self._entries.get(digest)
        return entry if entry and entry.size == size else None


def may_link(entry: FileEntry) -> bool:
    """Whether one more save may link the file instead of writing its content again."""
    spread = MAX_LINKS // 2 + 1
    return entry.links < MAX_LINKS - zlib.crc32(entry.name.encode()) % spread


def hashing_threads() -> int:
    """How many threads hash at a time: more than this rank's processors would only take turns."""
    if hasattr(os, "sched_getaffinity"):
        processors = len(os.sched_getaffinity(0))
    else:
        processors = os.cpu_count() or 1
    ranks_of_host = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    return min(WORKERS, max(2, processors // ranks_of_host))


def _count_workers(backend: Backend) -> int:
    """For a disk, one more than the hashing threads: its syncs come last.

    More workers would only take the processors from those that hash (measured: 7 were slower than 3
    on 2 processors).
    """
    if not backend.traits.sync:
        return OBJECT_STORE_WORKERS
    return min(WORKERS, hashing_threads() + 1)


class Writer:
    """Writes items into one folder. Make one per save; `run` may be called from any thread."""

    def __init__(
        self, backend: Backend, folder: str, parent: ParentIndex, is_bare: bool = False
    ) -> None:
        self.count = ByteCount()
        self._backend = backend
        self._folder = folder
        self._parent = parent
        self._is_bare = is_bare
        self._stop = threading.Event()
        self._staging = StagingMemory()

    def stop(self) -> None:
        """Makes `run` raise SaveAborted soon."""
        self._stop.set()

    def run(self, items: Sequence[Item]) -> RankPart:
        """Writes all items; every file is durable on return.

        Raises what the first failing thread raised; removes nothing.
        """
        self.count.total = sum(item.bytes for item in items)
        tensors = [piece for item in items if not item.is_object for piece in pieces(item)]
        # An object's size may change from save to save, which must not cut other packs of tensors.
        objects = [item for item in items if item.is_object]
        with ThreadPoolExecutor(
            _count_workers(self._backend), thread_name_prefix="provision-checkpoint"
        ) as pool:
            try:
                futures = [pool.submit(self._write, pack) for pack in packs(tensors)]
                futures += [pool.submit(self._write, pack) for pack in packs(objects)]
                # The results in order. Raises the error of the first future that fails, without
                # waiting for the others to start.
                finished, waiting = wait(futures, return_when=FIRST_EXCEPTION)
                errors = [error for future in finished if (error := future.exception()) is not None]
                if errors:
                    for future in waiting:
                        future.cancel()
                    for error in errors:
                        if not isinstance(error, SaveAborted):
                            raise error
                    raise errors[0]
                parts = [future.result() for future in futures]
            except BaseException:
                self._stop.set()
                raise
        self._backend.flush(self._folder)
        files = {entry.name: entry for part in parts for entry in part.files}
        return RankPart(list(files.values()), [pair for part in parts for pair in part.records])

    def _write(self, pack: list[Item]) -> RankPart:
        self._staging.clear()
        serialized = [serialize(piece, self._staging, self._is_bare) for piece in pack]
        if len(pack) == 1:
            return self._write_piece(pack[0], serialized[0])
        return self._write_pack(pack, serialized)

    def _write_piece(self, piece: Item, serialized: Serialized) -> RankPart:
        """The record's digest ends before the CRC-32 of its elements: if the parent has it, the CRC
        need not be computed.
        """
        before = serialized.archive.before
        digest = hashes.new()
        self._raise_if_stopped()
        digest.update(before)
        digest.update(serialized.elements)
        content_hash = digest.hexdigest()
        entry = self._link(content_hash, serialized.size, piece.bytes)
        if entry is None:
            crc32 = serialized.crc32()
            *_, after = parts = serialized.parts(crc32)
            digest.update(after)
            file_crc32 = hashes.joined_crc32(zlib.crc32(before), crc32, len(serialized.elements))
            named = hashes.digest(digest.hexdigest(), zlib.crc32(after, file_crc32))
            entry = self._write_file(parts, named, piece.bytes)
        record = Record(
            entry.name,
            0,
            serialized.size,
            content_hash,
            serialized.data,
            piece.offsets,
            piece.sizes,
        )
        return RankPart([entry], [(piece, record)])

    def _write_pack(self, pack: Sequence[Item], serialized: Sequence[Serialized]) -> RankPart:
        """Each record's digest is a CRC-32: it tells which records of a damaged file are damaged."""
        content = memoryview(
            b"".join([part for each in serialized for part in each.parts(each.crc32())])
        )
        digest = hashes.new()
        self._raise_if_stopped()
        digest.update(content)
        content_hash = digest.hexdigest()
        payload = sum(piece.bytes for piece in pack)
        entry = self._link(content_hash, len(content), payload)
        if entry is None:
            named = hashes.digest(content_hash, zlib.crc32(content))
            entry = self._write_file([content], named, payload)
        records = []
        at = 0
        for piece, part in zip(pack, serialized):
            end = at + part.size
            data = None if part.data is None else at + part.data
            crc32 = f"{zlib.crc32(content[at:end]):08x}"
            record = Record(entry.name, at, end - at, crc32, data, piece.offsets, piece.sizes)
            records.append((piece, record))
            at = end
        return RankPart([entry], records)

    def _raise_if_stopped(self) -> None:
        if self._stop.is_set():
            raise SaveAborted()

    def _write_file(self, parts: Sequence[memoryview], digest: str, payload: int) -> FileEntry:
        """payload: bytes of tensors in it."""
        entry = FileEntry(digest + SUFFIX, sum(map(len, parts)), digest)
        try:
            self._backend.write(self._folder, entry.name, parts)
        except FileExistsError:
            # This save has the same content twice: the first writer completes the file.
            self.count.add(linked=payload)
        else:
            self.count.add(written=payload)
        return entry

    def _link(self, digest: str, size: int, payload: int) -> FileEntry | None:
        """Makes a file of the parent part of the folder.

        Returns None if there is none of this digest, or it is known to be corrupt, has been linked
        often enough, or cannot be linked (the file system has no links, the file too many, or the
        parent was just removed).
        """
        entry = self._parent.find(digest, size)
        if entry is None or corrupt_files.has(self._backend.root, entry.name):
            return None
        if not (self._backend.traits.links and may_link(entry)):
            return None
        source = self._parent.folder
        assert source is not None
        try:
            if self._backend.stat(source, entry.name).size != entry.size:
                return None
            self._backend.reuse(source, entry.name, self._folder)
        except OSError:
            return None
        self.count.add(linked=payload)
        return replace(entry, links=entry.links + 1)
