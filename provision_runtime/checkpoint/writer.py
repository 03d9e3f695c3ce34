"""One rank's part of a checkpoint: a few threads serialize, hash and write files, and link those
that the parent checkpoint has.

A file is named by the SHA-256 of its content, so equal content is one file, and what did not change
is recognized by its hash. A file holds one piece, or a pack of small ones.
"""

from __future__ import annotations

import hashlib
import os
import threading
import zlib
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from . import corrupt_files, known_crcs, manifest
from .hashes import xxh128_of
from .items import packs, pieces
from .manifest import Record
from .serialize import PARTS, StagingMemory, serialize

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .backends import Backend
    from .items import Item
    from .manifest import FileEntry, Manifest
    from .serialize import Serialized

T = TypeVar("T")

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

    def add(self, *, written: int = 0, linked: int = 0) -> None:
        with self._lock:
            self.written += written
            self.linked += linked


class ParentFile(NamedTuple):
    entry: FileEntry
    records: list[Record]


class ParentIndex:
    """What the parent checkpoint holds, by content and by box: an incremental save may link it."""

    def __init__(self, folder: str | None, parent: Manifest | None) -> None:
        self.folder = folder
        files = parent.files if parent else ()
        self.by_sha256 = {entry.sha256: entry for entry in files}
        self._by_name = {entry.name: entry for entry in files}
        self._records: dict[object, Record] = {}
        for name, record in parent.records() if parent else ():
            self._records[(name, record.offsets, record.sizes)] = record

    def file_of(self, pack: Sequence[Item]) -> ParentFile | None:
        """The file that holds exactly these boxes, in this order; their types may differ."""
        records: list[Record] = []
        end = 0
        for piece in pack:
            record = self._records.get((piece.name, piece.offsets, piece.sizes))
            if record is None or record.at != end or record.file != (records or [record])[0].file:
                return None
            records.append(record)
            end += record.size
        entry = self._by_name[records[0].file]
        return ParentFile(entry, records) if end == entry.size else None


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


@dataclass(frozen=True)
class _FileContent:
    parts: list[memoryview]
    sha256: str
    xxh128: str | None
    records: list[Record]

    @property
    def entry(self) -> FileEntry:
        size = sum(map(len, self.parts))
        return manifest.FileEntry(self.sha256 + SUFFIX, size, self.sha256, xxh128=self.xxh128)


class Writer:
    """Writes items into one folder. Make one per save; `run` may be called from any thread."""

    def __init__(self, backend: Backend, folder: str, parent: ParentIndex) -> None:
        self.count = ByteCount()
        self._backend = backend
        self._folder = folder
        self._parent = parent
        self._stop = threading.Event()
        self._staging = StagingMemory()
        self._hashing_slots = threading.Semaphore(hashing_threads())

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
        files = manifest.unique_by_name(entry for part in parts for entry in part.files)
        return RankPart(list(files.values()), [pair for part in parts for pair in part.records])

    def _write(self, pack: list[Item]) -> RankPart:
        content = self._hash(pack)
        entry = self._link_or_write(content, sum(piece.bytes for piece in pack))
        return RankPart([entry], list(zip(pack, content.records)))

    # Hashes

    def _hash(self, pack: list[Item]) -> _FileContent:
        """The content of a file, with its hashes.

        If the parent's file of these boxes has the same XXH128, the SHA-256 come from its manifest.
        """
        root, box_key = self._backend.root, pack[0].box_key
        self._staging.clear()
        archives = [serialize(piece, self._staging) for piece in pack]
        before = self._parent.file_of(pack)
        saved_crcs = known_crcs.find(root, box_key, before.entry.sha256) if before else None
        if saved_crcs is not None:
            parts = _join(archives, saved_crcs)
            content = _unchanged(parts, self._xxh128(parts), before)
            if content is not None:
                return content
        crcs = []
        for archive in archives:
            with self._hashing():
                crcs.append(archive.crc32())
        parts = _join(archives, crcs)
        xxh128 = self._xxh128(parts)
        content = _unchanged(parts, xxh128, before)
        if content is None:
            sha256, records = self._sha256(pack, archives, parts)
            content = _FileContent(parts, sha256, xxh128, records)
        known_crcs.add(root, box_key, content.sha256, crcs)
        return content

    def _xxh128(self, parts: Sequence[memoryview]) -> str | None:
        with self._hashing():
            return xxh128_of(parts)

    def _sha256(
        self, pack: Sequence[Item], archives: Sequence[Serialized], parts: Sequence[memoryview]
    ) -> tuple[str, list[Record]]:
        """The SHA-256 of the file, and its records with theirs."""
        file_digest = hashlib.sha256()
        records = []
        begin = 0
        remaining = iter(parts)
        for piece, archive in zip(pack, archives):
            digest = hashlib.sha256()
            with self._hashing():
                for part in islice(remaining, PARTS):
                    digest.update(part)
                    if len(pack) > 1:
                        file_digest.update(part)
            data = None if archive.data is None else begin + archive.data
            records.append(
                Record(
                    "", begin, archive.size, digest.hexdigest(), data, piece.offsets, piece.sizes
                )
            )
            begin += archive.size
        sha256 = file_digest.hexdigest() if len(pack) > 1 else records[0].sha256
        return sha256, [record._replace(file=sha256 + SUFFIX) for record in records]

    @contextmanager
    def _hashing(self) -> Iterator[None]:
        with self._hashing_slots:
            if self._stop.is_set():
                raise SaveAborted()
            yield

    # Files

    def _link_or_write(self, content: _FileContent, payload: int) -> FileEntry:
        """Links the parent's file of this content into the folder, or writes a new one.

        payload: bytes of tensors in it.
        """
        entry = content.entry
        parent_entry = self._parent.by_sha256.get(entry.sha256)
        if parent_entry is not None:
            linked = self._link(parent_entry)
            if linked is not None:
                self.count.add(linked=payload)
                return linked if linked.xxh128 else replace(linked, xxh128=entry.xxh128)
        try:
            self._backend.write(self._folder, entry.name, content.parts)
        except FileExistsError:
            # This save has the same content twice: the first writer completes the file.
            self.count.add(linked=payload)
        else:
            self.count.add(written=payload)
        return entry

    def _link(self, entry: FileEntry) -> FileEntry | None:
        """Makes a file of the parent part of the folder.

        Returns None if it is known to be corrupt, has been linked often enough, or cannot be linked
        (the file system has no links, the file too many, or the parent was just removed).
        """
        assert self._parent.folder is not None
        source = entry.home or self._parent.folder
        if corrupt_files.has(self._backend.root, entry.name) or not may_link(entry):
            return None
        try:
            has_links = self._backend.traits.links == "hard"
            if has_links and self._backend.stat(source, entry.name).size != entry.size:
                return None
            home = self._backend.reuse(source, entry.name, self._folder)
        except OSError:
            return None
        return replace(entry, home=home, links=entry.links + 1)


def _join(archives: Sequence[Serialized], crcs: Sequence[int]) -> list[memoryview]:
    return [part for archive, crc32 in zip(archives, crcs) for part in archive.parts(crc32)]


def _unchanged(
    parts: list[memoryview], xxh128: str | None, before: ParentFile | None
) -> _FileContent | None:
    """The content with the hashes of the parent's file, if both have the same XXH128."""
    if before is None or xxh128 is None or xxh128 != before.entry.xxh128:
        return None
    return _FileContent(parts, before.entry.sha256, xxh128, before.records)
