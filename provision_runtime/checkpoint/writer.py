"""One rank's part of a checkpoint: a few threads serialize, hash and write pieces, and link those
that the parent checkpoint has.

A file is named by the SHA-256 of its content, so equal pieces are one file, and a piece that did
not change is recognized by its hash. Small pieces are packed. A pack stays linked as long as half
of it is still in use, so small changes mean small writes.
"""

from __future__ import annotations

import hashlib
import os
import threading
import zlib
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from . import corrupt_files, known_crcs, manifest
from .hashes import FileHashes, xxh128_of
from .items import packs, pieces
from .serialize import StagingMemory, serialize

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from .backends import Backend
    from .items import Item, Place
    from .manifest import FileEntry, Manifest, Record
    from .serialize import Serialized

# Pieces of this size and more are files of their own; smaller ones are packed.
MIN_FILE_BYTES = 1 << 20
SUFFIX = ".distcp"
# A pack of the parent is linked only if at least this part of it is still in use; otherwise the
# pieces in use are written again.
MIN_USED_PART = 0.5
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


class ParentIndex:
    """What the parent checkpoint holds, by content and by place: an incremental save may link it.

    False if there is no parent.
    """

    def __init__(self, folder: str | None, parent: Manifest | None) -> None:
        self.folder = folder
        self._by_sha256: dict[str, FileEntry] = {}
        self._by_name: dict[str, FileEntry] = {}
        self._records: dict[str, tuple[Record, FileEntry]] = {}
        self._boxes: dict[object, Record] = {}
        if parent is None:
            return
        for entry in parent.files:
            self._by_sha256[entry.sha256] = entry
            self._by_name[entry.name] = entry
        for name, record in parent.records():
            self._records[record.sha256] = (record, self._by_name[record.file])
            self._boxes[(name, record.offsets, record.sizes)] = record

    def __bool__(self) -> bool:
        return bool(self._by_sha256)

    def has_file(self, name: str) -> bool:
        return name in self._by_name

    def file(self, sha256: str) -> FileEntry | None:
        return self._by_sha256.get(sha256)

    def record(self, sha256: str) -> tuple[Record, FileEntry] | None:
        return self._records.get(sha256)

    def record_at(self, piece: Item) -> tuple[Record, FileEntry] | None:
        """The same box of the tensor of this name, or the same object; its type may differ."""
        record = self._boxes.get((piece.name, piece.offsets, piece.sizes))
        if record is None:
            return None
        return record, self._by_name[record.file]


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
        self, backend: Backend, folder: str, parent: ParentIndex, digests: Mapping[Place, str]
    ) -> None:
        self.count = ByteCount()
        self._backend = backend
        self._folder = folder
        self._parent = parent
        self._digests = digests
        self._stop = threading.Event()
        self._staging = StagingMemory()
        self._hashing = threading.Semaphore(hashing_threads())
        self._linked: set[str] = set()

    def stop(self) -> None:
        """Makes `run` raise Stopped soon."""
        self._stop.set()

    def run(self, items: Sequence[Item]) -> RankPart:
        """Writes all items; every file is durable on return.

        Raises what the first failing thread raised; removes nothing.
        """
        all_pieces = [piece for item in items for piece in pieces(item)]
        self.count.total = sum(piece.bytes for piece in all_pieces)
        return self._write(all_pieces)

    def corrupt_parent_files(self) -> list[str]:
        """Files of the parent that this process knows to be corrupt."""
        names = []
        for name in corrupt_files.names_in(self._backend.root):
            if name.endswith(SUFFIX) and self._parent.has_file(name):
                names.append(name)
        return names

    def linked_files(self, names: Iterable[str]) -> list[str]:
        """Those of the files that this process linked into the checkpoint."""
        return sorted(self._linked.intersection(names))

    def rewrite(self, part: RankPart, corrupt: Container[str]) -> RankPart:
        """Writes again the content of files that were linked before any rank knew of their damage.

        Call it once the files are no longer in the folder and all are in `corrupt_files`, so that
        none is linked again.
        """
        affected = [piece for piece, record in part.records if record.file in corrupt]
        self.count.add(linked=-sum(piece.bytes for piece in affected))
        files = [entry for entry in part.files if entry.name not in corrupt]
        records = [pair for pair in part.records if pair[1].file not in corrupt]
        return _join([RankPart(files, records), self._write(affected)])

    def measure(self, items: Sequence[Item]) -> int:
        """How many bytes `run` would write. Hashes everything; assumes that all packs stay."""
        all_pieces = [piece for item in items for piece in pieces(item)]
        with ThreadPoolExecutor(WORKERS, thread_name_prefix="provision-checkpoint") as pool:
            hashed = self._hash_all(pool, all_pieces)
        total = 0
        for piece, sha256 in hashed:
            match = self._parent.record(sha256)
            if match is None or not may_link(match[1]):
                total += piece.bytes
        return total

    def _write(self, all_pieces: Sequence[Item]) -> RankPart:
        big = [piece for piece in all_pieces if piece.bytes >= MIN_FILE_BYTES]
        small = [piece for piece in all_pieces if piece.bytes < MIN_FILE_BYTES]
        with ThreadPoolExecutor(
            _count_workers(self._backend), thread_name_prefix="provision-checkpoint"
        ) as pool:
            try:
                linked, changed = self._link_small(pool, small)
                futures = [pool.submit(self._write_big, piece) for piece in big]
                futures += [pool.submit(self._write_pack, pack) for pack in packs(changed)]
                parts = [linked, *_results(futures)]
            except BaseException:
                self._stop.set()
                raise
        self._backend.flush(self._folder)
        return _join(parts)

    # Small pieces

    def _link_small(
        self, pool: ThreadPoolExecutor, small: list[Item]
    ) -> tuple[RankPart, list[Item]]:
        """Links the packs of the parent that still hold enough of the small pieces.

        Returns the linked pieces, and the others, which must be written.
        """
        linked = RankPart([], [])
        if not self._parent:
            return linked, small
        matches = []
        used_records: dict[str, Record] = {}
        for piece, sha256 in self._hash_all(pool, small):
            match = self._parent.record(sha256)
            matches.append((piece, match))
            if match is not None:
                used_records[sha256] = match[0]
        used_bytes: dict[str, int] = {}
        for record in used_records.values():
            used_bytes[record.file] = used_bytes.get(record.file, 0) + record.size
        changed = []
        entries: dict[str, FileEntry | None] = {}
        for piece, match in matches:
            if match is None or used_bytes[match[0].file] < MIN_USED_PART * match[1].size:
                changed.append(piece)
                continue
            record, entry = match
            if entry.name not in entries:
                entries[entry.name] = self._link(entry)
            if entries[entry.name] is None:
                changed.append(piece)
                continue
            self.count.add(linked=piece.bytes)
            linked.records.append(
                (piece, replace(record, offsets=piece.offsets, sizes=piece.sizes))
            )
        linked.files.extend(entry for entry in entries.values() if entry)
        return linked, changed

    def _hash_all(
        self, pool: ThreadPoolExecutor, all_pieces: Sequence[Item]
    ) -> list[tuple[Item, str]]:
        futures = [pool.submit(self._hash_group, group) for group in packs(all_pieces)]
        return [pair for group in _results(futures) for pair in group]

    def _hash_group(self, group: list[Item]) -> list[tuple[Item, str]]:
        hashed = []
        for piece in group:
            sha256 = self._digests.get(piece.place)
            if not sha256:
                self._staging.clear()
                sha256 = self._hash(piece, serialize(piece, self._staging))[0].sha256
            hashed.append((piece, sha256))
        return hashed

    def _write_pack(self, pack: list[Item]) -> RankPart:
        parts: list[memoryview] = []
        serialized_pieces: list[tuple[Item, Serialized, str, int]] = []
        pack_sha256 = hashlib.sha256()
        size = 0
        self._staging.clear()
        for piece in pack:
            serialized = serialize(piece, self._staging)
            piece_parts = serialized.parts(self._crc32(serialized))
            sha256 = self._sha256(piece_parts, pack_sha256)
            serialized_pieces.append((piece, serialized, sha256, size))
            parts += piece_parts
            size += serialized.size
        hashes = FileHashes(pack_sha256.hexdigest(), self._xxh128(parts))
        entry = self._write_or_link(hashes, parts, size, sum(piece.bytes for piece in pack))
        records = []
        for piece, serialized, sha256, begin in serialized_pieces:
            records.append((piece, _record(entry.name, begin, piece, serialized, sha256)))
        return RankPart([entry], records)

    # Big pieces

    def _write_big(self, piece: Item) -> RankPart:
        match = self._parent.record(self._digests.get(piece.place, ""))
        if match is not None:
            # The digest is known from an earlier save, so the piece is not even read.
            record, parent_entry = match
            linked = self._link(parent_entry)
            if linked is not None:
                self.count.add(linked=piece.bytes)
                record = replace(record, offsets=piece.offsets, sizes=piece.sizes)
                return RankPart([linked], [(piece, record)])
        self._staging.clear()
        serialized = serialize(piece, self._staging)
        hashes, parts = self._hash(piece, serialized)
        entry = self._write_or_link(hashes, parts, serialized.size, piece.bytes)
        return RankPart(
            [entry], [(piece, _record(entry.name, 0, piece, serialized, hashes.sha256))]
        )

    # Hashes

    def _hash(self, piece: Item, serialized: Serialized) -> tuple[FileHashes, list[memoryview]]:
        """The hashes of a record, and the record; without XXH128 for a piece that is packed.

        If the parent has the same bytes, takes their SHA-256 from its manifest.
        """
        before = self._parent.record_at(piece)
        root = self._backend.root
        crc32 = known_crcs.find(root, piece.place, before[0].sha256) if before else None
        is_same = None
        if before and crc32 is not None:
            parts = serialized.parts(crc32)
            xxh128 = self._record_xxh128(piece, parts)
            is_same = self._equals_parent(before, serialized.size, parts, xxh128)
            if is_same:
                return FileHashes(before[0].sha256, xxh128), parts
        crc32 = self._crc32(serialized)
        parts = serialized.parts(crc32)
        xxh128 = self._record_xxh128(piece, parts)
        if before and is_same is None:
            is_same = self._equals_parent(before, serialized.size, parts, xxh128)
        sha256 = before[0].sha256 if before and is_same else self._sha256(parts)
        known_crcs.add(root, piece.place, sha256, crc32)
        # The piece matches the manifest and the file does not; or the two hashes in the manifest
        # contradict each other.
        if before and is_same is False and sha256 == before[0].sha256:
            corrupt_files.add(root, before[1].name)
        return FileHashes(sha256, xxh128), parts

    def _equals_parent(
        self,
        before: tuple[Record, FileEntry],
        size: int,
        parts: Sequence[memoryview],
        xxh128: str | None,
    ) -> bool | None:
        """Whether the parent's file has these bytes; None if there is no quick way to tell.

        Compares XXH128 if both are known; otherwise reads the file.
        """
        record, entry = before
        if record.size != size:
            return None
        if xxh128 and entry.xxh128 and entry.size == record.size:
            return xxh128 == entry.xxh128
        assert self._parent.folder is not None
        home = entry.home or self._parent.folder
        with self._hashing:
            self._check_stop()
            return self._backend.has(home, entry.name, record.at, parts)

    def _record_xxh128(self, piece: Item, parts: Sequence[memoryview]) -> str | None:
        return self._xxh128(parts) if piece.bytes >= MIN_FILE_BYTES else None

    def _crc32(self, serialized: Serialized) -> int:
        with self._hashing:
            self._check_stop()
            return serialized.crc32()

    def _xxh128(self, parts: Sequence[memoryview]) -> str | None:
        with self._hashing:
            self._check_stop()
            return xxh128_of(parts)

    def _sha256(self, parts: Sequence[memoryview], also: Any = None) -> str:
        """also: another digest to update with the same bytes."""
        digest = hashlib.sha256()
        with self._hashing:
            self._check_stop()
            for part in parts:
                digest.update(part)
                if also is not None:
                    also.update(part)
        return digest.hexdigest()

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise SaveAborted()

    # Files

    def _write_or_link(
        self, hashes: FileHashes, parts: list[memoryview], size: int, payload: int
    ) -> FileEntry:
        """Links the parent's file of this content into the folder, or writes a new one.

        payload: bytes of tensors in it.
        """
        parent_entry = self._parent.file(hashes.sha256)
        if parent_entry is not None:
            linked = self._link(parent_entry)
            if linked is not None:
                self.count.add(linked=payload)
                return linked if linked.xxh128 else replace(linked, xxh128=hashes.xxh128)
        name = hashes.sha256 + SUFFIX
        entry = manifest.FileEntry(name, size, hashes.sha256, xxh128=hashes.xxh128)
        try:
            self._backend.write(self._folder, entry.name, parts)
        except FileExistsError:
            # This save has the same content twice: the first writer completes the file, or
            # `rewrite` does if it was linked.
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
            if has_links and self._backend.size(source, entry.name) != entry.size:
                return None
            home = self._backend.reuse(source, entry.name, self._folder)
        except OSError:
            return None
        self._linked.add(entry.name)
        return replace(entry, home=home, links=entry.links + 1)


def _join(parts: Sequence[RankPart]) -> RankPart:
    files = manifest.unique_by_name(entry for part in parts for entry in part.files)
    return RankPart(list(files.values()), [pair for part in parts for pair in part.records])


def _record(file: str, at: int, piece: Item, serialized: Serialized, sha256: str) -> Record:
    data = None if serialized.data is None else at + serialized.data
    return manifest.Record(file, at, serialized.size, sha256, data, piece.offsets, piece.sizes)


def _results(futures: Sequence[Future[Any]]) -> list[Any]:
    """The results in order.

    Raises the error of the first future that fails, without waiting for the others to start.
    """
    finished, waiting = wait(futures, return_when=FIRST_EXCEPTION)
    errors = [error for future in finished if (error := future.exception()) is not None]
    if errors:
        for future in waiting:
            future.cancel()
        for error in errors:
            if not isinstance(error, SaveAborted):
                raise error
        raise errors[0]
    return [future.result() for future in futures]
