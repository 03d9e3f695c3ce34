"""Compressed layers, gzip or zstd: the same bytes however many cores took part, and none is compressed twice.

A layer is cut into blocks that are compressed each for itself, several at a time. gzip: one member, whose blocks end on whole bytes
(RFC 1951, an empty stored block). zstd: a frame per block (RFC 8878 lets them follow each other). The library decides the bytes: the
zlib that Python runs with, or the libzstd of the package zstandard; so what it made lies under its version.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from provision.core.errors import IntegrityError, disk_full_raises
from provision.core.types import Image, Layer, Progress
from provision.image import exporter, layer_cache, oci_layout
from provision_runtime.facts import limits

Method = Literal["none", "gzip", "zstd"]
METHODS: tuple[Method, ...] = get_args(Method)

BLOCK = 4 << 20  # part of the bytes: another size is another digest
MOST_WORKERS = 16  # each has some megabytes in its hands
GZIP_LEVEL = 6
ZSTD_LEVEL = 3
# RFC 1952: deflate, no flags, no time, no hint, unknown system.
GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
LAST_BLOCK = b"\x03\x00"  # an empty deflate block that says it is the last


@dataclass(frozen=True, kw_only=True)
class Codec:
    """How a layer becomes another file. name: library and settings. block: one piece, whatever is before or after it."""

    name: str
    suffix: str  # of the media type
    block: Callable[[bytes], bytes]
    is_gzip: bool


def codec(method: Literal["gzip", "zstd"]) -> Codec:
    if method == "gzip":
        name = f"gzip-{GZIP_LEVEL}-zlib{zlib.ZLIB_RUNTIME_VERSION}"
        return Codec(name=name, suffix="+gzip", block=_deflate, is_gzip=True)
    import zstandard

    version = ".".join(map(str, zstandard.ZSTD_VERSION))
    return Codec(
        name=f"zstd-{ZSTD_LEVEL}-libzstd{version}", suffix="+zstd", block=_zstd, is_gzip=False
    )


def pack(
    image: Image, method: Method, packed: Path, progress: Progress, workers: int | None = None
) -> Image:
    """The image with compressed layers, in a layout below `packed`; as it is for `none`.

    A layer that was compressed before, for this environment or another, is not compressed again. The caller holds the environment.
    Raises IntegrityError where a layer is not what its digest says, NoSpace where the disk is full.
    """
    if method == "none":
        return image
    by = codec(method)
    layout = packed / image.layout.name / by.name
    written = oci_layout.read(image.layout)
    if written is None or written.manifest_digest != image.manifest_digest:
        raise IntegrityError(
            f"{image.layout} is not the whole image any more.",
            advice="`provision image build` makes it again.",
        )
    found = _whole(layout)
    if (
        found is None
        or found.config_digest != written.config_digest
        or found.annotations != written.annotations
    ):
        with _space_for(layout), oci_layout.building(layout) as new:
            made = _pack_all(image, by, _known(packed, by.name), new, progress, workers or cores())
            config = json.loads(oci_layout.blob(image.layout, image.image_id).read_bytes())
            found = oci_layout.write(new, config, made, written.annotations, image.reference)
            layer_cache.note(new, {layer.digest: "" for layer in made})
        _drop_others(layout, method)
    return replace(image, layout=layout, manifest_digest=found.manifest_digest, layers=found.layers)


def _whole(layout: Path) -> oci_layout.Written | None:
    written = oci_layout.read(layout)
    return (
        None
        if written is None
        or layer_cache.damaged(layout, [layer.digest for layer in written.layers])
        else written
    )


def cores() -> int:
    """What this process may use: affinity and quota."""
    allowed: float = limits.cpus()["allowed"]
    return max(1, math.ceil(allowed))


def _known(packed: Path, name: str) -> dict[str, tuple[Path, Layer]]:
    """Layers that were compressed so before, by their diff id."""
    known: dict[str, tuple[Path, Layer]] = {}
    for layout in sorted(packed.glob(f"*/{name}")):
        written = _whole(layout)
        if written is not None:
            config = json.loads(oci_layout.blob(layout, written.config_digest).read_bytes())
            rows = zip(config["rootfs"]["diff_ids"], written.layers, strict=True)
            known |= {
                diff_id: (oci_layout.blob(layout, layer.digest), layer) for diff_id, layer in rows
            }
    return known


def _pack_all(
    image: Image,
    by: Codec,
    known: Mapping[str, tuple[Path, Layer]],
    new: Path,
    progress: Progress,
    workers: int,
) -> list[Layer]:
    made: list[Layer] = []
    title = f"compressing layers ({by.name.partition('-')[0]})"
    with progress.meter(title, sum(layer.size for layer in image.layers)) as meter:
        for layer in image.layers:
            ready = (
                _take(*known[layer.digest], oci_layout.blobs(new))
                if layer.digest in known
                else None
            )
            if ready is not None:
                meter.advance(layer.size)
            made.append(
                replace(ready, group=layer.group)
                if ready
                else _pack(image.layout, layer, by, new, meter.advance, workers)
            )
    return made


def _take(path: Path, layer: Layer, blobs: Path) -> Layer | None:
    """A second name for a blob of another layout; None where that has just gone."""
    try:
        exporter.link_or_copy(path, blobs / path.name)
    except FileNotFoundError:
        return None
    return layer


def _pack(
    layout: Path, layer: Layer, by: Codec, new: Path, advance: Callable[[int], None], workers: int
) -> Layer:
    plain, digest, size, beside = (
        hashlib.sha256(),
        hashlib.sha256(),
        0,
        oci_layout.blobs(new) / ".packing",
    )
    crc = 0

    def pieces() -> Iterator[bytes]:
        nonlocal crc
        with (
            oci_layout.blob(layout, layer.digest).open("rb") as file
        ):  # unbuffered, a read may bring less, and blocks of other sizes are another digest
            while piece := file.read(BLOCK):
                plain.update(piece)
                crc = zlib.crc32(piece, crc) if by.is_gzip else 0
                advance(len(piece))
                yield piece

    with beside.open("wb") as file:
        blocks = _parallel(by.block, pieces(), min(workers, MOST_WORKERS))
        for part in _framed(blocks, by, lambda: struct.pack("<II", crc, layer.size & 0xFFFFFFFF)):
            digest.update(part)
            size += len(part)
            file.write(part)
    if f"sha256:{plain.hexdigest()}" != layer.digest:
        raise IntegrityError(
            f"The layer {layer.digest} in {layout} is damaged.",
            advice="Remove that folder and build the image again.",
        )
    beside.replace(oci_layout.blobs(new) / digest.hexdigest())
    return replace(
        layer,
        digest=f"sha256:{digest.hexdigest()}",
        size=size,
        media_type=oci_layout.LAYER + by.suffix,
    )


def _framed(blocks: Iterable[bytes], by: Codec, trailer: Callable[[], bytes]) -> Iterator[bytes]:
    """What gzip wants around its blocks; a zstd frame stands for itself. trailer: known only when all was read."""
    if by.is_gzip:
        yield GZIP_HEADER
    yield from blocks
    if by.is_gzip:
        yield LAST_BLOCK + trailer()


def _parallel(
    work: Callable[[bytes], bytes], pieces: Iterable[bytes], workers: int
) -> Iterator[bytes]:
    """Each piece worked on, in order. zlib and libzstd run without the interpreter's lock. At most 2 * workers pieces are held."""
    waiting: deque[Future[bytes]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for piece in pieces:
            waiting.append(pool.submit(work, piece))
            if len(waiting) >= 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _deflate(piece: bytes) -> bytes:
    deflate = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return deflate.compress(piece) + deflate.flush(zlib.Z_SYNC_FLUSH)


def _zstd(piece: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(piece)


def _drop_others(layout: Path, method: Method) -> None:
    """What another version of the library had made."""
    for path in layout.parent.glob(f"{method}-*"):
        if path != layout:
            shutil.rmtree(path)


@contextmanager
def _space_for(layout: Path) -> Iterator[None]:
    with disk_full_raises(
        f"The disk of {layout.parent} is full: nothing was compressed.", advice="Free space there."
    ):
        layout.parent.mkdir(parents=True, exist_ok=True)
        yield
