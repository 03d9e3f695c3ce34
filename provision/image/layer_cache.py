"""The layer cache: which layers the layouts of this machine hold, and whether their files are
intact.

Each layout has a layers.json, which is not part of the image. It records the cache key of each
layer, and the size, mtime and inode that its file had when it was hashed. While those three are the
same, a layer is taken to match its digest; otherwise it is hashed again. A build that needs a layer
which another layout already has, with the same cache key, links that file instead of making it
again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from provision.adapters.http import sha256_of
from provision.core.atomic import atomic_write
from provision.core.dataclass import frozen
from provision.core.schema import InvalidDocument, parse_document
from provision.core.system_errors import named_errors
from provision.core.tar import CHUNK
from provision.image import oci_layout

FILE = "layers.json"


@frozen
class CachedLayer:
    """A layer in a layout. key: its cache key; empty for layers of a base. stamp: size, mtime and
    inode of its file when it was hashed."""

    path: Path
    key: str
    stamp: tuple[int, ...]

    @property
    def digest(self) -> str:
        return f"sha256:{self.path.name}"

    @property
    def is_unchanged(self) -> bool:
        """Whether the file is the one that was hashed. No byte of it is read."""
        try:
            return _stamp(self.path) == self.stamp
        except OSError:
            return False


def _stamp(path: Path) -> tuple[int, ...]:
    """What changes when a file is written or replaced, but not when it gets another link, as its
    ctime does."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino


def record(layout: Path, keys: Mapping[str, str]) -> None:
    """Record layers that were just hashed: cache keys by digest. Replaces the whole record."""
    rows = {
        digest: {"cache_key": key, "stat": _stamp(oci_layout.blob(layout, digest))}
        for digest, key in keys.items()
    }
    atomic_write(layout / FILE, oci_layout.canonical(rows))


def read(layout: Path) -> list[CachedLayer]:
    """The recorded layers of a layout; empty if the record cannot be read."""
    try:
        rows = parse_document((layout / FILE).read_bytes(), "image-layers")
    except (OSError, InvalidDocument):
        return []
    return [
        CachedLayer(
            path=oci_layout.blob(layout, digest), key=row["cache_key"], stamp=tuple(row["stat"])
        )
        for digest, row in rows.items()
    ]


def neighbors(layout: Path) -> list[CachedLayer]:
    """The recorded layers of a layout, of killed builds of it, and of the layouts next to it."""
    siblings = sorted(path for path in layout.parent.iterdir() if not path.name.startswith("."))
    layouts = dict.fromkeys([layout, *oci_layout.unfinished(layout), *siblings])
    return [layer for path in layouts for layer in read(path)]


def link_first(candidates: Iterable[CachedLayer], layout: Path) -> str | None:
    """Link the first unchanged candidate into a layout, and return its digest. No byte is read."""
    for layer in candidates:
        target = oci_layout.blobs(layout) / layer.path.name
        # OSError: the file was removed, or is on another disk, or the disk has no hard links. The
        # layer is made then.
        with suppress(OSError):
            if not layer.is_unchanged:
                continue
            if not target.exists():
                os.link(layer.path, target)
            if _stamp(target) == layer.stamp:
                return layer.digest
            target.unlink()
    return None


def link_or_copy(source: Path, target: Path) -> None:
    """Link a blob, or copy it. A copy gets its name only once it is complete and matches its
    digest."""
    try:
        os.link(source, target)
    except OSError:
        unfinished = target.with_name(f"{target.name}.new")
        try:
            with named_errors(target), unfinished.open("xb") as file:
                file.writelines(verified_chunks(source))
            unfinished.replace(target)
        finally:
            unfinished.unlink(missing_ok=True)


def quarantine_corrupt(
    layout: Path, digests: Sequence[str], *, thorough: bool = False
) -> list[str]:
    """Remove the layers that do not match their digests from a layout, and return their digests.

    Hashes only layers whose files changed since they were hashed last; thorough: hashes all. The
    layout is incomplete afterwards if it lost a layer. Layers that were hashed are recorded.
    """
    recorded = {layer.digest: layer for layer in read(layout)}
    corrupt = []
    was_hashed = False
    for digest in dict.fromkeys(digests):
        if not thorough and digest in recorded and recorded[digest].is_unchanged:
            continue
        was_hashed = True
        path = oci_layout.blob(layout, digest)
        if f"sha256:{sha256_of(path)}" != digest:
            corrupt.append(digest)
    for digest in corrupt:
        discard_blob(oci_layout.blob(layout, digest))
    if was_hashed:
        keys = {layer.digest: layer.key for layer in recorded.values() if layer.path.exists()}
        for digest in digests:
            if digest not in corrupt:
                keys.setdefault(digest, "")
        # A layout that we may not write to is hashed again next time.
        with suppress(OSError):
            record(layout, keys)
    return corrupt


def discard_blob(blob: Path) -> None:
    """Remove a corrupt blob from its layout. Its mtime changes first, so that other layouts with a
    link to the same file hash it again too."""
    with suppress(OSError):
        os.utime(blob)
        blob.unlink()


def verified_chunks(blob: Path) -> Iterator[bytes]:
    """The bytes of a blob. If they do not match its name, discards the blob and raises
    IntegrityError after the last chunk: the caller must then discard what it received."""
    digest = hashlib.sha256()
    with blob.open("rb", buffering=0) as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            yield chunk
    if digest.hexdigest() != blob.name:
        discard_blob(blob)
        raise oci_layout.corrupt_blob(blob)
