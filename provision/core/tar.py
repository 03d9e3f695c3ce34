"""Tar archives: headers whose bytes depend only on their arguments, and safe reading of archives
from elsewhere.

tarfile promises readable archives, not the same bytes from every Python release; a layer's digest
must be the same from 3.10 to 3.13, so we write the few header fields that a layer needs ourselves.
Format: POSIX ustar, with one pax record per value that ustar cannot hold.
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

_TYPE = {"file": b"0", "link": b"2", "folder": b"5"}
_PAX = b"x"
_SIZE_LIMIT = 8 << 30  # eleven octal digits
_NAME_LIMIT, _PREFIX_LIMIT, _LINK_LIMIT = 100, 155, 100

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
    name = _encode(path + "/" if kind == "folder" else path)
    link = _encode(target)
    prefix_and_name = _split(name)
    records = b""
    if prefix_and_name is None or not name.isascii():
        records += _pax_record(b"path", name)
        prefix_and_name = (b"", name[:_NAME_LIMIT])
    if len(link) > _LINK_LIMIT or not link.isascii():
        records += _pax_record(b"linkpath", link)
        link = link[:_LINK_LIMIT]
    header_size = size
    if size >= _SIZE_LIMIT:
        records += _pax_record(b"size", str(size).encode())
        header_size = 0
    block = _header_block(prefix_and_name, _TYPE[kind], mode, mtime, header_size, link)
    if not records:
        return block
    pax = _header_block((b"", b"PaxHeader"), _PAX, 0o644, mtime, len(records), b"")
    return pax + records + padding(len(records)) + block


def padding(size: int) -> bytes:
    """The zeros that fill the last block after `size` bytes of content."""
    return bytes(-size % BLOCK)


def file_member(name: str, size: int, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """A regular file, with time 0, as a member of a tar stream."""
    yield header(name, kind="file", mode=0o644, mtime=0, size=size)
    yield from chunks
    if rest := padding(size):  # an empty chunk would end a chunked HTTP request
        yield rest


def file_chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(CHUNK):
            yield chunk


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _split(name: bytes) -> tuple[bytes, bytes] | None:
    """A name as ustar's prefix and name, or None if it fits neither whole nor split at a slash."""
    if len(name) <= _NAME_LIMIT:
        return b"", name
    cut = name.rfind(b"/", 0, min(_PREFIX_LIMIT + 1, len(name) - 1))
    if cut <= 0 or len(name) - cut - 1 > _NAME_LIMIT:
        return None
    return name[:cut], name[cut + 1 :]


def _pax_record(key: bytes, value: bytes) -> bytes:
    """`length key=value`, where length counts its own digits."""
    length = rest = len(key) + len(value) + 3
    while len(str(length)) + rest != length:
        length = len(str(length)) + rest
    return b"%d %s=%s\n" % (length, key, value)


def _header_block(
    prefix_and_name: tuple[bytes, bytes], kind: bytes, mode: int, mtime: int, size: int, link: bytes
) -> bytes:
    prefix, name = prefix_and_name
    before_checksum = b"".join(
        (
            name.ljust(100, b"\0"),
            b"%07o\0" % mode,
            b"%07o\0" % 0,  # uid
            b"%07o\0" % 0,  # gid
            b"%011o\0" % size,
            b"%011o\0" % mtime,
        )
    )
    after_checksum = b"".join(
        (
            kind,
            link.ljust(100, b"\0"),
            b"ustar\x0000",
            bytes(80),
            prefix.ljust(155, b"\0"),
            bytes(12),
        )
    )
    checksum = sum(before_checksum) + sum(after_checksum) + 8 * ord(" ")
    return before_checksum + b"%06o\0 " % checksum + after_checksum


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
    """Chunks of bytes as a file to read from, as far as tarfile and zstandard need one."""

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
