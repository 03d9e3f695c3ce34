"""zstd:chunked: layers of which a reader can fetch single files, such as those that it does not have
from another image.

For other readers it is a zstd file of many frames: each file, or part of a large one, has its own. Three
frames at the end, which they skip, hold the table of contents, the tar headers (as tar-split, from
which a reader builds the tar again to check its digest), and where both are. Annotations in the
manifest repeat the last one. The format is that of containers/storage 1.59, which Podman and CRI-O use.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import struct
import tarfile
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import IO

from provision.adapters import zstd
from provision.core import tar
from provision.core.crc64 import crc64
from provision.core.dataclass import frozen
from provision.core.parallel import map_in_order
from provision.image import oci_layout

# A larger file has several frames, which are compressed in parallel and fetched alone.
PART = 4 << 20
_SKIPPED = 0x184D2A50  # the magic number of a frame that zstd skips
_MAGIC = b"GNUlInUx"
_FOOTER = struct.Struct("<7Q8s")
_CRFS = 1  # the form of the table
_ANNOTATION = "io.github.containers.zstd-chunked."
_TYPES = {tarfile.REGTYPE: "reg", tarfile.DIRTYPE: "dir", tarfile.SYMTYPE: "symlink"}

Row = dict[str, str | int]


@frozen
class _Part:
    """What becomes one frame. rows: those of the table that get its place; none for headers."""

    content: bytes
    rows: tuple[Row, ...] = ()


class _TarSplit:
    """The tar without its files' content, one JSON document a line."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []

    def add_raw(self, content: bytes) -> None:
        self._add({"type": 2, "payload": base64.b64encode(content).decode()})

    def add_file(self, row: Row, checksum: int) -> None:
        payload = base64.b64encode(checksum.to_bytes(8, "big")).decode()
        self._add({"type": 1, "name": row["name"], "size": row["size"], "payload": payload})

    def _add(self, row: Row) -> None:
        self._lines.append(oci_layout.canonical({**row, "position": len(self._lines)}) + b"\n")

    @property
    def content(self) -> bytes:
        return b"".join(self._lines)


def compress_to(
    chunks: Iterable[bytes], layer: Path, target: Path, workers: int | None = None
) -> None:
    """Write a layer of ours, whose bytes `chunks` are, as zstd:chunked: the same bytes for any number of
    workers.

    A layer with names that are no UTF-8, which the table cannot hold, gets none.
    """
    table: list[Row] = []
    tar_split = _TarSplit()
    with target.open("wb") as file:
        parts = _parts(chunks, layer, table, tar_split)
        for part, frame in map_in_order(_compress_part, parts, workers):
            for row in part.rows:
                row["offset"] = row.get("offset", file.tell())
                row["endOffset"] = file.tell() + len(frame)
            file.write(frame)
        headers = zstd.compress(tar_split.content, zstd.LEVEL)
        contents = {
            "version": 1,
            "entries": table,
            "tarSplitDigest": oci_layout.sha256_digest(headers),
        }
        try:
            toc = json.dumps(contents, ensure_ascii=False, sort_keys=True).encode()
        except UnicodeEncodeError:
            return
        packed = zstd.compress(toc, zstd.LEVEL)
        places = []
        for frame in (packed, headers):
            _skipped_frame(file, frame)
            places.append((file.tell() - len(frame), len(frame)))
        _skipped_frame(
            file,
            _FOOTER.pack(*places[0], len(toc), _CRFS, *places[1], len(tar_split.content), _MAGIC),
        )


def annotations(blob: Path) -> dict[str, str]:
    """What a manifest says about a layer, read from its footer: where its table is, and the table's
    digest. Empty for layers without a table."""
    with blob.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _FOOTER.size))
        footer = file.read()
        if not footer.endswith(_MAGIC):
            return {}
        start, length, unpacked, kind, *headers, _ = _FOOTER.unpack(footer)
        file.seek(start)
        digest = oci_layout.sha256_digest(file.read(length))
    return {
        f"{_ANNOTATION}manifest-checksum": digest,
        f"{_ANNOTATION}manifest-position": f"{start}:{length}:{unpacked}:{kind}",
        f"{_ANNOTATION}tarsplit-position": ":".join(map(str, headers)),
    }


def _skipped_frame(file: IO[bytes], content: bytes) -> None:
    file.write(struct.pack("<II", _SKIPPED, len(content)) + content)


def _compress_part(part: _Part) -> tuple[_Part, bytes]:
    return part, zstd.compress(part.content, zstd.LEVEL)


def _parts(
    chunks: Iterable[bytes], layer: Path, table: list[Row], tar_split: _TarSplit
) -> Iterator[_Part]:
    """The layer in parts. Fills the table and the headers on the way."""
    archive = tar.ChunkReader(chunks)
    position = 0
    headers = b""
    for member in _members(layer):
        segment = archive.read(member.offset_data - position)
        tar_split.add_raw(segment)
        headers += segment
        position = member.offset_data
        row = _row(member)
        table.append(row)
        checksum = 0
        if member.size:
            yield _Part(content=headers)
            headers = b""
            digest = hashlib.sha256()
            for start in range(0, member.size, PART):
                content = archive.read(min(PART, member.size - start))
                digest.update(content)
                checksum = crc64(content, checksum)
                part_row = row
                if start:
                    part_row = {"type": "chunk", "name": row["name"], "chunkOffset": start}
                    table.append(part_row)
                if member.size > PART:
                    part_row["chunkSize"] = len(content)
                    part_row["chunkDigest"] = oci_layout.sha256_digest(content)
                yield _Part(content=content, rows=(row,) if part_row is row else (row, part_row))
            row["digest"] = f"sha256:{digest.hexdigest()}"
            position += member.size
        tar_split.add_file(row, checksum)
    end = b"".join(iter(partial(archive.read, tar.CHUNK), b""))
    tar_split.add_raw(end)
    yield _Part(content=headers + end)


def _members(layer: Path) -> Iterator[tarfile.TarInfo]:
    """The members with their places. A damaged layer ends early; its digest then says so."""
    with (
        contextlib.suppress(*tar.UNREADABLE),
        tarfile.open(layer, "r:", tarinfo=tar.BoundedTarInfo) as archive,
    ):
        yield from archive


def _row(member: tarfile.TarInfo) -> Row:
    row: Row = {
        "type": _TYPES[member.type],
        "name": f"{member.name}/" if member.isdir() else member.name,
        "mode": member.mode,
        "size": member.size,
        "modtime": datetime.fromtimestamp(member.mtime, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    return {**row, "linkName": member.linkname} if member.linkname else row

