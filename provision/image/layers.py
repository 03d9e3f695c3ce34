"""Layers: their bytes as uncompressed tar files.

Each file is read once. While it is written it is hashed twice: as part of its layer, and by itself,
to be compared with what its package says about it. Uncompressed, a layer's blob digest is its diff
id, so one hash serves manifest, config and engine.
"""

from __future__ import annotations

import gzip
import hashlib
import itertools
import posixpath
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, cast

from provision.adapters import zstd
from provision.core import tar
from provision.core.dataclass import frozen
from provision.core.errors import IntegrityError
from provision.core.tar import CHUNK, Kind
from provision.core.types import Layer

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
# A compressed layer may grow by this factor; small ones, which may hold a file of zeros, up to 1 GiB.
MAX_EXPANSION, MIN_EXPANDED_LIMIT = 100, 1 << 30

_ADVICE = (
    "Make or download it again (docker pull or docker load if it is in an engine), "
    "or choose another base with --base."
)


# The members of a layer


@frozen
class LayerEntry:
    """One member of a layer. A file has either a `source` on this host, with the hash that its package
    states, or its `content`."""

    path: str  # in the image, without the leading slash
    kind: Kind = "file"
    mode: int = 0o644
    size: int = 0
    source: Path | None = None
    content: bytes | None = None
    target: str = ""
    sha256: str = ""

    @staticmethod
    def of(path: str, content: bytes, *, executable: bool = False) -> LayerEntry:
        return LayerEntry(
            path=path.lstrip("/"),
            content=content,
            size=len(content),
            mode=0o755 if executable else 0o644,
        )

    def with_content(self, content: bytes) -> LayerEntry:
        return replace(self, source=None, content=content, size=len(content), sha256="")


def file_entry(image_path: str, path: Path, sha256: str) -> LayerEntry:
    """A regular file of this host. IntegrityError if it is missing, or anything else: reading a pipe
    would wait, and reading a device never end."""
    try:
        status = path.stat()
    except FileNotFoundError as error:
        raise IntegrityError(
            f"{path} is missing, though it was installed.",
            advice="Run `provision env remove` and build the environment again.",
        ) from error
    if not stat.S_ISREG(status.st_mode):
        raise IntegrityError(
            f"{path} is not a file, but its package lists it as one; it cannot be put into an image."
        )
    return LayerEntry(
        path=image_path,
        mode=0o755 if status.st_mode & 0o100 else 0o644,
        size=status.st_size,
        source=path,
        sha256=sha256,
    )


# Writing our layers


class _BlobWriter:
    """A file that is hashed while it is written, and named after its digest at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("wb", buffering=CHUNK)
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> None:
        self._hash.update(data)
        self._file.write(data)
        self.size += len(data)

    def commit(self, blobs: Path) -> str:
        """Give the file its name; returns its digest."""
        self._file.close()
        self._path.rename(blobs / self._hash.hexdigest())
        return self.digest

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"

    def __enter__(self) -> _BlobWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        """Close the file, and remove it unless it was committed."""
        self._file.close()
        self._path.unlink(missing_ok=True)


def write_layer(
    group: str,
    entries: Sequence[LayerEntry],
    blobs: Path,
    mtime: int,
    advance: Callable[[int], None],
) -> Layer:
    """Write one layer into a layout's blobs, with the folders above its entries. Entries must be
    sorted by path."""
    with _BlobWriter(blobs / f".{group}") as blob:
        for entry in with_parent_folders(entries):
            blob.write(
                tar.header(
                    entry.path,
                    kind=entry.kind,
                    mode=entry.mode,
                    mtime=mtime,
                    size=entry.size,
                    target=entry.target,
                )
            )
            if entry.content is not None:
                blob.write(entry.content)
                advance(entry.size)
            elif entry.source is not None:
                _copy_file(entry, entry.source, blob, advance)
            blob.write(tar.padding(entry.size))
        blob.write(tar.END)
        return Layer(group=group, digest=blob.commit(blobs), size=blob.size)


def archive_size(entries: Iterable[LayerEntry]) -> int:
    """Bytes of a layer with these entries, without the few more that long names need."""
    contents = (tar.BLOCK + entry.size + len(tar.padding(entry.size)) for entry in entries)
    return sum(contents) + len(tar.END)


def with_parent_folders(entries: Sequence[LayerEntry]) -> list[LayerEntry]:
    """The entries and every folder above them, parents first, so that a layer can be unpacked
    alone."""
    by_path = {entry.path: entry for entry in entries}
    for entry in entries:
        parent = posixpath.dirname(entry.path)
        while parent and parent not in by_path:
            by_path[parent] = LayerEntry(path=parent, kind="folder", mode=0o755)
            parent = posixpath.dirname(parent)
    return [by_path[path] for path in sorted(by_path)]


def _copy_file(
    entry: LayerEntry, source: Path, blob: _BlobWriter, advance: Callable[[int], None]
) -> None:
    digest, size = hashlib.sha256(), 0
    for chunk in tar.file_chunks(source):
        size += len(chunk)
        if size > entry.size:
            break
        blob.write(chunk)
        digest.update(chunk)
        advance(len(chunk))
    if size != entry.size:
        raise IntegrityError(
            f"{source} changed while it was read.", advice="Run the same command again."
        )
    if digest.hexdigest() != entry.sha256:
        raise IntegrityError(
            f"{source} is not the file of its package: its hash differs.",
            advice="A file of the environment was edited, and a package cache shares it. Run "
            "`provision env remove`, `uv cache clean PACKAGE`, and build again.",
        )


# Copying the layers of a base


def write_base(
    archive: Iterable[bytes], diff_ids: Sequence[str], blobs: Path, advance: Callable[[int], None]
) -> None:
    """Write the layers of a base straight out of an image archive, docker's or OCI's: layers are
    recognized by their digests, whatever the archive calls them.

    Raises IntegrityError unless the archive held every layer that the base's config names.
    """
    missing = set(diff_ids)
    try:
        with tar.open_stream(archive) as members:
            for member in members:
                file = members.extractfile(member) if member.isreg() else None
                if file is None:
                    continue
                digest, size = _write_blob(file, member.size, diff_ids, blobs)
                missing.discard(digest)
                advance(size if digest in diff_ids else 0)
    except tar.UNREADABLE as error:
        raise IntegrityError(
            f"An archive of image layers cannot be read: {error}.", advice=_ADVICE
        ) from error
    if missing:
        raise IntegrityError(
            f"The archive of the base image lacks its layer {min(missing)}.", advice=_ADVICE
        )


def _write_blob(
    file: IO[bytes], size: int, layer_ids: Sequence[str], blobs: Path
) -> tuple[str, int]:
    """One member of an archive, decompressed, as a blob; it stays only if it is a wanted layer.
    Returns its diff id and its size."""
    limit = max(MIN_EXPANDED_LIMIT, MAX_EXPANSION * size)
    with _BlobWriter(blobs / ".base") as blob:
        for chunk in decompress(file):
            blob.write(chunk)
            if blob.size > limit:
                raise tarfile.ReadError(
                    f"{size} bytes that expand to more than {limit} are not a layer"
                )
        if blob.digest in layer_ids:
            blob.commit(blobs)
        return blob.digest, blob.size


def decompress(file: IO[bytes]) -> Iterator[bytes]:
    """The chunks of a file. A gzip file has several members, and a zstd file several frames, if
    parts of a layer can be fetched alone (estargz, zstd:chunked). Raises one of
    tar.UNREADABLE if it cannot be read."""
    first = file.read(CHUNK)
    whole = cast(IO[bytes], tar.ChunkReader(itertools.chain((first,), _chunks(file))))
    if first.startswith(GZIP):
        return _chunks(cast(IO[bytes], gzip.GzipFile(fileobj=whole)))
    if first.startswith(ZSTD):
        return zstd.decompressed(whole, CHUNK)
    return _chunks(whole)


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(CHUNK):
        yield chunk
