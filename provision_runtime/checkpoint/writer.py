"""One rank's part of a checkpoint: pieces are serialized, hashed and written by a few threads, and what the parent has is linked.

A file is named by its content's SHA-256, so equal pieces are one file, and a piece that did not change is known by its hash. Small
pieces are packed; a pack stays linked as long as half of it is still used, so little that changes means little that is written.
"""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from . import corrupt_files, manifest
from .hashes import Hashes, xxh128_of
from .items import packs, pieces
from .serialize import Staging, serialize
from .threads import WORKERS, hashing_threads, workers

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from .backends import Backend
    from .items import Item, Place
    from .parent_index import Known
    from .serialize import Serialized

# From here on a piece is a file of its own; smaller ones are packed.
BIG = 1 << 20
SUFFIX = ".distcp"
# A pack of the parent that is used less than this is not linked; what is still used of it is written again.
LEAST_USED = 0.5


class Stopped(Exception):
    """The save failed elsewhere."""


@dataclass
class Progress:
    """What this rank has done so far, in bytes; total is known before anything is written."""

    total: int = 0
    written: int = 0
    linked: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, *, written: int = 0, linked: int = 0) -> None:
        with self._lock:
            self.written += written
            self.linked += linked


@dataclass(frozen=True)
class Part:
    """What one rank contributes to the manifest."""

    files: list[manifest.FileEntry]
    records: list[tuple[Item, manifest.Record]]


class Writer:
    """Writes items into one folder. Make one per save; `run` may be called from any thread."""

    def __init__(
        self, backend: Backend, folder: str, known: Known, digests: Mapping[Place, str]
    ) -> None:
        self.progress = Progress()
        self._backend = backend
        self._folder = folder
        self._known = known
        self._digests = digests
        self._stop = threading.Event()
        self._staging = Staging()
        self._hashing = threading.Semaphore(hashing_threads())
        self._linked: set[str] = set()

    def stop(self) -> None:
        """Have `run` raise Stopped soon."""
        self._stop.set()

    def run(self, items: Sequence[Item]) -> Part:
        """All records of the items, every file durable. Raises what the first failing thread raised; nothing is tidied up."""
        cut = [piece for item in items for piece in pieces(item)]
        self.progress.total = sum(piece.bytes for piece in cut)
        return self._write(cut)

    def suspected(self) -> list[str]:
        """Files of the parent that this process knows to be damaged."""
        return [
            name
            for name in corrupt_files.of(self._backend.root)
            if name.endswith(SUFFIX) and self._known.has(name)
        ]

    def linked(self, names: Iterable[str]) -> list[str]:
        """Those of the files that this process made part of the checkpoint without writing them."""
        return sorted(self._linked.intersection(names))

    def write_anew(self, part: Part, damaged: Container[str]) -> Part:
        """The part with what lies in these files written once more: they were linked before anybody knew. The folder has none of them
        any more, and all of them are suspects, so that none is linked again."""
        again = [piece for piece, record in part.records if record.file in damaged]
        self.progress.add(linked=-sum(piece.bytes for piece in again))
        files = [entry for entry in part.files if entry.name not in damaged]
        records = [pair for pair in part.records if pair[1].file not in damaged]
        return _joined([Part(files, records), self._write(again)])

    def _write(self, cut: Sequence[Item]) -> Part:
        big = [piece for piece in cut if piece.bytes >= BIG]
        small = [piece for piece in cut if piece.bytes < BIG]
        with ThreadPoolExecutor(
            workers(self._backend), thread_name_prefix="provision-checkpoint"
        ) as pool:
            try:
                kept, changed = self._sort_out(pool, small)
                jobs = [pool.submit(self._write_alone, piece) for piece in big]
                jobs += [pool.submit(self._write_pack, pack) for pack in packs(changed)]
                parts = [kept, *_results(jobs)]
            except BaseException:
                self._stop.set()
                raise
        self._backend.flush(self._folder)
        return _joined(parts)

    def measure(self, items: Sequence[Item]) -> int:
        """How many bytes `run` would have to write, by hashing everything; packs are taken to stay."""
        cut = [piece for item in items for piece in pieces(item)]
        with ThreadPoolExecutor(WORKERS, thread_name_prefix="provision-checkpoint") as pool:
            hashed = [
                pair
                for group in _results(
                    [pool.submit(self._digests_of, group) for group in packs(cut)]
                )
                for pair in group
            ]
        return sum(piece.bytes for piece, sha256 in hashed if self._known.record(sha256) is None)

    def _sort_out(self, pool: ThreadPoolExecutor, small: list[Item]) -> tuple[Part, list[Item]]:
        """The small pieces that packs of the parent still hold, linked; and the others."""
        if not self._known:
            return Part([], []), small
        groups = [pool.submit(self._digests_of, group) for group in packs(small)]
        hashed = [pair for group in _results(groups) for pair in group]
        found = [(piece, self._known.record(sha256)) for piece, sha256 in hashed]
        used: dict[str, int] = {}
        for record, _ in {
            record.sha256: (record, entry) for _, held in found if held for record, entry in [held]
        }.values():
            used[record.file] = used.get(record.file, 0) + record.size
        return self._link_packs(found, used)

    def _link_packs(
        self,
        found: list[tuple[Item, tuple[manifest.Record, manifest.FileEntry] | None]],
        used: dict[str, int],
    ) -> tuple[Part, list[Item]]:
        linked: dict[str, manifest.FileEntry | None] = {}
        kept, changed = Part([], []), []
        for piece, held in found:
            if held is None or used[held[0].file] < LEAST_USED * held[1].size:
                changed.append(piece)
                continue
            record, entry = held
            if entry.name not in linked:
                linked[entry.name] = self._reuse(entry)
            if linked[entry.name] is None:
                changed.append(piece)
            else:
                self.progress.add(linked=piece.bytes)
                kept.records.append(
                    (piece, replace(record, offsets=piece.offsets, sizes=piece.sizes))
                )
        kept.files.extend(entry for entry in linked.values() if entry)
        return kept, changed

    def _digests_of(self, group: list[Item]) -> list[tuple[Item, str]]:
        return [
            (piece, self._digests.get(piece.place) or self._digest_of(piece)) for piece in group
        ]

    def _digest_of(self, piece: Item) -> str:
        self._staging.clear()
        return self._hashes(piece, serialize(piece, self._staging)).sha256

    def _hashes(self, piece: Item, serialized: Serialized) -> Hashes:
        """Of the record; of what is packed the SHA-256 alone. Where the parent has the same bytes, SHA-256 is taken from it, not made."""
        held = self._known.before(piece)
        xxh128 = self._xxh128(serialized.parts) if piece.bytes >= BIG else None
        same = self._is_in(held, serialized, xxh128) if held else None
        if held and same:
            return Hashes(held[0].sha256, xxh128)
        sha256 = self._sha256(serialized)
        # The content is the recorded one, and the file's is another; or its two hashes in the manifest contradict each other.
        if held and same is False and sha256 == held[0].sha256:
            corrupt_files.add(self._backend.root, held[1].name)
        return Hashes(sha256, xxh128)

    def _is_in(
        self,
        held: tuple[manifest.Record, manifest.FileEntry],
        serialized: Serialized,
        xxh128: str | None,
    ) -> bool | None:
        """Whether the parent's file has these bytes; by its XXH128 where both are known, by reading it where they are not."""
        record, entry = held
        if record.size != serialized.size:
            return None
        if xxh128 and entry.xxh128 and entry.size == record.size:
            return xxh128 == entry.xxh128
        assert self._known.folder is not None
        with self._hashing:
            self._heed_stop()
            return self._backend.has(
                entry.home or self._known.folder, entry.name, record.at, serialized.parts
            )

    def _write_alone(self, piece: Item) -> Part:
        return self._link_unread(piece) or self._write_read(piece)

    def _link_unread(self, piece: Item) -> Part | None:
        """Where the digest is known beforehand, the piece is not even read."""
        held = self._known.record(self._digests.get(piece.place, ""))
        entry = self._reuse(held[1]) if held else None
        if held is None or entry is None:
            return None
        self.progress.add(linked=piece.bytes)
        return Part([entry], [(piece, replace(held[0], offsets=piece.offsets, sizes=piece.sizes))])

    def _write_read(self, piece: Item) -> Part:
        self._staging.clear()
        serialized = serialize(piece, self._staging)
        hashes = self._hashes(piece, serialized)
        entry = self._place(hashes, serialized.parts, serialized.size, piece.bytes)
        return Part([entry], [(piece, _record(entry.name, 0, piece, serialized, hashes.sha256))])

    def _write_pack(self, pack: list[Item]) -> Part:
        parts: list[memoryview] = []
        records: list[tuple[Item, Serialized, str, int]] = []
        whole, at = hashlib.sha256(), 0
        self._staging.clear()
        for piece in pack:
            serialized = serialize(piece, self._staging)
            sha256 = self._sha256(serialized, whole)
            records.append((piece, serialized, sha256, at))
            parts += serialized.parts
            at += serialized.size
        hashes = Hashes(whole.hexdigest(), self._xxh128(parts))
        entry = self._place(hashes, parts, at, sum(piece.bytes for piece in pack))
        return Part(
            [entry],
            [
                (piece, _record(entry.name, begin, piece, said, sha256))
                for piece, said, sha256, begin in records
            ],
        )

    def _xxh128(self, parts: Sequence[memoryview]) -> str | None:
        with self._hashing:
            self._heed_stop()
            return xxh128_of(parts)

    def _sha256(self, serialized: Serialized, also: Any = None) -> str:
        digest = hashlib.sha256()
        with self._hashing:
            self._heed_stop()
            for part in serialized.parts:
                digest.update(part)
                if also is not None:
                    also.update(part)
        return digest.hexdigest()

    def _heed_stop(self) -> None:
        if self._stop.is_set():
            raise Stopped()

    def _place(
        self, hashes: Hashes, parts: list[memoryview], size: int, payload: int
    ) -> manifest.FileEntry:
        """The file of this content in the folder: the parent's, or a new one."""
        held = self._known.file(hashes.sha256)
        if held is not None:
            entry = self._reuse(held)
            if entry is not None:
                self.progress.add(linked=payload)
                return entry if entry.xxh128 else replace(entry, xxh128=hashes.xxh128)
        entry = manifest.FileEntry(
            hashes.sha256 + SUFFIX, size, hashes.sha256, xxh128=hashes.xxh128
        )
        try:
            self._backend.write(self._folder, entry.name, parts)
        except FileExistsError:  # the same content once more, in this save: its writer sees to it, or `write_anew` if it was linked
            self.progress.add(linked=payload)
        else:
            self.progress.add(written=payload)
        return entry

    def _reuse(self, held: manifest.FileEntry) -> manifest.FileEntry | None:
        """None where it cannot be had (no links there, too many of them, the parent was removed just now), or is known to be damaged."""
        assert self._known.folder is not None
        source = held.home or self._known.folder
        if corrupt_files.has(self._backend.root, held.name):
            return None
        try:
            if (
                self._backend.traits.links == "hard"
                and self._backend.size(source, held.name) != held.size
            ):
                return None
            home = self._backend.reuse(source, held.name, self._folder)
        except OSError:
            return None
        self._linked.add(held.name)
        return held if held.home == home else replace(held, home=home)


def _joined(parts: Sequence[Part]) -> Part:
    files = manifest.by_name(entry for part in parts for entry in part.files)
    return Part(list(files.values()), [pair for part in parts for pair in part.records])


def _record(
    file: str, at: int, piece: Item, serialized: Serialized, sha256: str
) -> manifest.Record:
    data = None if serialized.data is None else at + serialized.data
    return manifest.Record(file, at, serialized.size, sha256, data, piece.offsets, piece.sizes)


def _results(jobs: Sequence[Future[Any]]) -> list[Any]:
    """In order; raises what the first failing job raised, without waiting for the others to start."""
    done, waiting = wait(jobs, return_when=FIRST_EXCEPTION)
    failed = [job for job in done if job.exception()]
    if failed:
        for job in waiting:
            job.cancel()
        errors = [error for job in failed if (error := job.exception()) is not None]
        raise next((error for error in errors if not isinstance(error, Stopped)), errors[0])
    return [job.result() for job in jobs]
