"""Tar archives: headers whose bytes depend only on their arguments, and safe reading of archives
from elsewhere.

The same arguments give the same bytes, also with the releases of Python from 3.10 to 3.13 (tried): the
digest of a layer must not depend on them. Format: POSIX ustar, with a pax header for values that it cannot
hold.
"""

from __future__ import annotations

import gzip
import lzma
import posixpath
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Literal, cast

Kind = Literal["file", "link", "folder"]

BLOCK = 512
END = bytes(2 * BLOCK)
# The time of every file in what we build: 1980-01-01, the oldest in a zip archive.
EPOCH = 315532800
CHUNK = 1 << 20  # of reading and hashing, here and wherever images are read

_TYPE = {"file": tarfile.REGTYPE, "link": tarfile.SYMTYPE, "folder": tarfile.DIRTYPE}

WHITEOUT, OPAQUE = ".wh.", ".wh..wh..opq"
# Bytes of the names and attributes of one member, which tarfile reads into memory at once.
HEADER_LIMIT = 1 << 20
_LONG_NAME_TYPES = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
# What tarfile raises for a file that is not an archive; RecursionError: long names of long names.
UNREADABLE = (
    tarfile.TarError,
    ValueError,
    OverflowError,
    RecursionError,
    EOFError,
    zlib.error,
    lzma.LZMAError,
    gzip.BadGzipFile,
)


# Writing


def header(
    path: str, *, kind: Kind, mode: int, mtime: int, size: int = 0, target: str = ""
) -> bytes:
    """The header of one member, with a pax header before it if a value does not fit."""
    member = tarfile.TarInfo(path)
    member.type, member.linkname = _TYPE[kind], target
    member.mode, member.mtime, member.size = mode, mtime, size
    return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def padding(size: int) -> bytes:
    """The zeros that fill the last block after `size` bytes of content."""
    return bytes(-size % BLOCK)


def file_member(name: str, size: int, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """A regular file, with time 0, as a member of a tar stream."""
    yield header(name, kind="file", mode=0o644, mtime=0, size=size)
    yield from chunks
    if rest := padding(size):  # an empty chunk would end a chunked HTTP request
        yield rest


def tree_member(name: str, path: Path) -> Iterator[bytes]:
    """A file, link or folder as a member whose bytes depend on its content and on whether it is a
    program alone."""
    if path.is_symlink():
        yield header(name, kind="link", mode=0o777, mtime=EPOCH, target=str(path.readlink()))
    elif path.is_dir():
        yield header(name, kind="folder", mode=0o755, mtime=EPOCH)
    else:
        status = path.stat()
        mode = 0o755 if status.st_mode & 0o111 else 0o644
        yield header(name, kind="file", mode=mode, mtime=EPOCH, size=status.st_size)
        yield from file_chunks(path)
        yield padding(status.st_size)


def file_chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(CHUNK):
            yield chunk


# Reading


class BoundedTarInfo(tarfile.TarInfo):
    """For `tarfile.open(tarinfo=BoundedTarInfo)`: raises ReadError if the names of a member are so
    long that reading them would cost much memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> BoundedTarInfo:
        member = super().frombuf(buf, encoding, errors)
        if member.type in _LONG_NAME_TYPES and member.size > HEADER_LIMIT:
            raise tarfile.ReadError(f"a header of {member.size} bytes")
        return member


def open_stream(chunks: Iterable[bytes]) -> tarfile.TarFile:
    """A tar archive to iterate over while it streams in."""
    return tarfile.open(
        fileobj=cast(IO[bytes], ChunkReader(chunks)),
        mode="r|",
        bufsize=CHUNK,
        tarinfo=BoundedTarInfo,
    )


class ChunkReader:
    """Chunks of bytes as a file to read from, as far as tarfile, gzip and zstd need one."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._rest = memoryview(b"")

    def read(self, size: int = -1) -> bytes:
        assert size > 0
        parts: list[memoryview] = []
        while size:
            if not self._rest:
                self._rest = memoryview(next(self._chunks, b""))
            if not self._rest:
                break
            part, self._rest = self._rest[:size], self._rest[size:]
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def hidden_by(path: str) -> Callable[[str], bool] | None:
    """Which paths of the layers below a whiteout of this name hides; None if it is not a whiteout.

    A whiteout hides one path and everything in it; an opaque one hides everything that its folder
    holds.
    """
    folder, name = posixpath.split(path)
    if not name.startswith(WHITEOUT):
        return None
    if name == OPAQUE:
        prefix = f"{folder}/" if folder else ""
        return lambda other: other.startswith(prefix)
    hidden = posixpath.join(folder, name[len(WHITEOUT) :])
    return lambda other: other == hidden or other.startswith(f"{hidden}/")
