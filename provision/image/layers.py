"""Layers as uncompressed tar files: each file is read once, and hashed while it is written: for its layer, and by itself, to be
compared with what its package says of it.

Uncompressed, a layer's blob digest is its diff id, so one hash serves manifest, config and engine.
"""

from __future__ import annotations

import hashlib
import itertools
import posixpath
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import IO, cast

from provision.core.errors import IntegrityError
from provision.core.types import Layer
from provision.image import tar
from provision.image.archives import UNREADABLE, Bounded
from provision.image.conda_files import Entry, verify

PIECE = 1 << 20
GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
# A layer may become this many times larger; small ones, with a file of zeros perhaps, up to 1 GiB.
INFLATED_TIMES, INFLATED_LEAST = 100, 1 << 30
_ADVICE = "Make or fetch it again (where it lies in an engine: docker pull, docker load), or choose another base with --base."
ZSTD_WINDOW = (
    128 << 20
)  # of memory to read a layer with; what the zstd command reads without being asked for more


class _Sink:
    """A file that is hashed while it is written; its name is known when it is done."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("wb", buffering=PIECE)
        self._digest = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes | memoryview) -> None:
        self._digest.update(data)
        self._file.write(data)
        self.size += len(data)

    def keep(self, blobs: Path) -> str:
        """Name the file by its digest."""
        self._file.close()
        self._path.rename(blobs / self.digest)
        return f"sha256:{self.digest}"

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def __enter__(self) -> _Sink:
        return self

    def __exit__(self, *exc: object) -> None:
        """Close the file; unless it was kept, it is gone."""
        self._file.close()
        self._path.unlink(missing_ok=True)


def write(
    group: str, entries: Sequence[Entry], blobs: Path, mtime: int, advance: Callable[[int], None]
) -> Layer:
    """Write one layer into a layout's blobs. Entries are sorted by path; folders above them are added."""
    buffer = memoryview(bytearray(PIECE))
    with _Sink(blobs / f".{group}") as sink:
        for entry in with_folders(entries):
            _write_member(entry, sink, mtime, buffer, advance)
        sink.write(tar.END)
        return Layer(group=group, digest=sink.keep(blobs), size=sink.size)


def size_of(entries: Iterable[Entry]) -> int:
    """Bytes of a layer with these entries, nearly: long names need some more."""
    return sum(tar.BLOCK + entry.size + len(tar.padding(entry.size)) for entry in entries) + len(
        tar.END
    )


def with_folders(entries: Sequence[Entry]) -> list[Entry]:
    """The entries and every folder above them, parents first, so that a layer can be unpacked alone."""
    given = {entry.path: entry for entry in entries}
    for entry in entries:
        parent = posixpath.dirname(entry.path)
        while parent and parent not in given:
            given[parent] = Entry(path=parent, kind="folder", mode=0o755)
            parent = posixpath.dirname(parent)
    return [given[path] for path in sorted(given)]


def _write_member(
    entry: Entry, sink: _Sink, mtime: int, buffer: memoryview, advance: Callable[[int], None]
) -> None:
    mode, size, target = entry.mode, entry.size, entry.target
    sink.write(
        tar.header(entry.path, kind=entry.kind, mode=mode, mtime=mtime, size=size, target=target)
    )
    if entry.content is not None:
        sink.write(entry.content)
        advance(entry.size)
    elif entry.source is not None:
        with entry.source.open("rb", buffering=0) as file:
            _copy(entry, file, sink, buffer, advance)
    sink.write(tar.padding(size))


def _copy(
    entry: Entry, file: FileIO, sink: _Sink, buffer: memoryview, advance: Callable[[int], None]
) -> None:
    digest = hashlib.sha256() if entry.hashes else None
    left = entry.size
    while left > 0 and (count := file.readinto(buffer)):
        piece = buffer[: min(count, left)]
        sink.write(piece)
        if digest:
            digest.update(piece)
        advance(len(piece))
        left -= count
    if left != 0 or (entry.size and file.read(1)):
        raise IntegrityError(
            f"{entry.source} changed while it was read.", advice="Run the same command again."
        )
    if digest:
        verify(entry, digest.hexdigest())


def write_base(
    archive: Iterable[bytes], diff_ids: Sequence[str], blobs: Path, advance: Callable[[int], None]
) -> list[Layer]:
    """Write the layers of a base straight out of an image archive (docker's or OCI's: layers are told by their digest).

    Raises IntegrityError unless every layer that the base's config names was there.
    """
    wanted = set(diff_ids)
    sizes: dict[str, int] = {}
    try:
        with reading(archive) as members:
            for member in members:
                if member.isreg() and (file := members.extractfile(member)):
                    digest, size = _write_blob(file, member.size, wanted, blobs)
                    sizes[digest] = size
                    advance(size if digest in wanted else 0)
    except UNREADABLE as error:
        raise IntegrityError(
            f"An archive of image layers cannot be read: {error}.", advice=_ADVICE
        ) from error
    missing = [digest for digest in diff_ids if digest not in sizes]
    if missing:
        raise IntegrityError(
            f"The archive of the base image does not hold its layer {missing[0]}.",
            advice=_ADVICE,
        )
    return [Layer(group="base", digest=digest, size=sizes[digest]) for digest in diff_ids]


def _write_blob(file: IO[bytes], size: int, wanted: set[str], blobs: Path) -> tuple[str, int]:
    """One member of an archive as a blob, kept if it is a layer that is wanted; compression is undone, as diff ids ask."""
    limit = max(INFLATED_LEAST, INFLATED_TIMES * size)
    with _Sink(blobs / ".base") as sink:
        for piece in _plain(file):
            sink.write(piece)
            if sink.size > limit:
                raise tarfile.ReadError(f"{size} bytes that become more than {limit} are no layer")
        digest = f"sha256:{sink.digest}"
        if digest in wanted:
            sink.keep(blobs)
        return digest, sink.size


def _plain(file: IO[bytes]) -> Iterator[bytes]:
    first = file.read(PIECE)
    if first.startswith(GZIP):
        return _inflated(first, file)
    if first.startswith(ZSTD):
        return _unzstd(first, file)
    return itertools.chain((first,), _pieces(file))


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    while piece := file.read(PIECE):
        yield piece


def _inflated(piece: bytes, file: IO[bytes]) -> Iterator[bytes]:
    """gzip has several members where parts of a layer can be fetched alone (estargz), and may be filled up with zeros."""
    inflate = zlib.decompressobj(wbits=31)
    while piece:
        if inflate.eof:
            inflate, piece = zlib.decompressobj(wbits=31), piece.lstrip(b"\0")
        yield inflate.decompress(piece, PIECE)
        piece = inflate.unconsumed_tail or inflate.unused_data or file.read(PIECE)
    yield inflate.flush()


def _unzstd(first: bytes, file: IO[bytes]) -> Iterator[bytes]:
    """zstd has several frames for the same reason (zstd:chunked). Raises as tarfile does where it cannot be read."""
    import zstandard

    whole = _Reader(itertools.chain((first,), _pieces(file)))
    decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW)
    try:
        yield from _pieces(
            decompressor.stream_reader(
                cast(IO[bytes], whole), read_size=PIECE, read_across_frames=True
            )
        )
    except zstandard.ZstdError as error:
        raise tarfile.ReadError(f"not zstd: {error}") from error


def reading(archive: Iterable[bytes]) -> tarfile.TarFile:
    """A tar archive to iterate over while it streams in."""
    return tarfile.open(
        fileobj=cast(IO[bytes], _Reader(archive)), mode="r|", bufsize=PIECE, tarinfo=Bounded
    )


class _Reader:
    """Pieces of bytes as the file that tarfile wants to read from."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._rest = memoryview(b"")

    def read(self, size: int = -1) -> bytes:
        assert size > 0
        parts: list[memoryview] = []
        while size:
            if not self._rest:
                self._rest = memoryview(next(self._pieces, b""))
            if not self._rest:
                break
            part, self._rest = self._rest[:size], self._rest[size:]
            parts.append(part)
            size -= len(part)
        return b"".join(parts)
