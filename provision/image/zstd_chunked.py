"""zstd:chunked: layers of which a reader can fetch single files, such as those that it does not have
from another image.

For other readers it is a zstd file of many frames: each file, or part of a large one, has its own. Three
frames at the end, which they skip, hold the table of contents, the tar headers (as tar-split, from
which a reader builds the tar again to check its digest), and where both are. Annotations in the
manifest repeat the last one. The format is that of containers/storage 1.59, for Podman and CRI-O.
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
# What becomes one frame, and the rows of the table that get its place: none for headers.
_Part = tuple[bytes, tuple[Row, ...]]


def compress_to(chunks: Iterable[bytes], layer: Path, target: Path) -> None:
    """Write a layer of ours, whose bytes `chunks` are, as zstd:chunked: the same bytes on any number of
    CPUs. A layer with names that are no UTF-8, which the table cannot hold, gets no table."""
    table: list[Row] = []
    tar_split: list[Row] = []
    with target.open("wb") as file:
        parts = _parts(chunks, layer, table, tar_split)
        for frame, rows in map_in_order(_compress_part, parts):
            for row in rows:
                row.setdefault("offset", file.tell())
                row["endOffset"] = file.tell() + len(frame)
            file.write(frame)
        lines = b"".join(
            oci_layout.canonical({**row, "position": number}) + b"\n"
            for number, row in enumerate(tar_split)
        )
        headers = zstd.compress(lines, zstd.LEVEL)
        digest = oci_layout.sha256_digest(headers)
        contents = {"version": 1, "entries": table, "tarSplitDigest": digest}
        try:
            toc = json.dumps(contents, ensure_ascii=False, sort_keys=True).encode()
        except UnicodeEncodeError:
            return
        toc_place = _write_skipped(file, zstd.compress(toc, zstd.LEVEL))
        headers_place = _write_skipped(file, headers)
        places = (*toc_place, len(toc), _CRFS, *headers_place, len(lines))
        _write_skipped(file, _FOOTER.pack(*places, _MAGIC))


def layer_annotations(blob: Path) -> dict[str, str]:
    """What a manifest says about a layer, read from its footer: where its table is, and the table's
    digest. Empty for layers without a table."""
    with blob.open("rb") as file:
        file.seek(max(0, blob.stat().st_size - _FOOTER.size))
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


def _write_skipped(file: IO[bytes], content: bytes) -> tuple[int, int]:
    """Returns where the content is."""
    file.write(struct.pack("<II", _SKIPPED, len(content)))
    place = file.tell()
    file.write(content)
    return place, len(content)


def _compress_part(part: _Part) -> _Part:
    content, rows = part
    return zstd.compress(content, zstd.LEVEL), rows


def _parts(
    chunks: Iterable[bytes], layer: Path, table: list[Row], tar_split: list[Row]
) -> Iterator[_Part]:
    """The layer in parts. Fills the table and the headers on the way."""
    archive = tar.ChunkReader(chunks)
    position = 0
    headers = b""
    for member in _members(layer):
        header = archive.read(member.offset_data - position)
        headers += header
        position = member.offset_data + member.size
        row = _row(member)
        table.append(row)
        checksum = 0
        if member.size:
            yield headers, ()
            headers = b""
            digest = hashlib.sha256()
            for start in range(0, member.size, PART):
                content = archive.read(min(PART, member.size - start))
                digest.update(content)
                checksum = crc64(content, checksum)
                part = row
                if start:
                    part = {"type": "chunk", "name": row["name"], "chunkOffset": start}
                    table.append(part)
                if member.size > PART:
                    part["chunkSize"] = len(content)
                    part["chunkDigest"] = oci_layout.sha256_digest(content)
                yield content, (row, part)
            row["digest"] = f"sha256:{digest.hexdigest()}"
        tar_split += (
            {"type": 2, "payload": _base64(header)},
            {
                "type": 1,
                "name": row["name"],
                "size": member.size,
                "payload": _base64(checksum.to_bytes(8, "big")),
            },
        )
    end = b"".join(iter(partial(archive.read, tar.CHUNK), b""))
    tar_split.append({"type": 2, "payload": _base64(end)})
    yield headers + end, ()


def _members(layer: Path) -> Iterator[tarfile.TarInfo]:
    """The members with their places. A damaged layer ends early; its digest then says so."""
    with (
        contextlib.suppress(*tar.UNREADABLE),
        tarfile.open(layer, "r:", tarinfo=tar.BoundedTarInfo) as archive,
    ):
        yield from archive


def _row(member: tarfile.TarInfo) -> Row:
    return {
        "type": _TYPES[member.type],
        "name": f"{member.name}/" if member.isdir() else member.name,
        "linkName": member.linkname,
        "mode": member.mode,
        "size": member.size,
        "modtime": datetime.fromtimestamp(member.mtime, timezone.utc).strftime(
            "%Y-%m-%dT%H:%M:%SZ"
        ),
    }


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
