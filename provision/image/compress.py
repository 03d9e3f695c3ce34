"""Compressed layers, gzip or zstd: the same bytes on any number of cores, and no layer is
compressed twice.

A layer is cut into blocks that are compressed independently, several at a time. gzip: one member,
whose blocks end on whole bytes (RFC 1951, an empty stored block). zstd: a frame per block (RFC 8878
lets frames follow each other). The library decides the bytes - the zlib that Python runs with, or
the libzstd of the package zstandard - so compressed layers are stored under its version.
"""

from __future__ import annotations

import hashlib
import shutil
import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from provision.core.errors import IntegrityError
from provision.core.host import usable_cpus
from provision.core.system_errors import disk_full_raises
from provision.core.types import Image, Layer, Progress
from provision.image import layer_cache, oci_layout
from provision.image.oci_layout import LayoutManifest

Compression = Literal["none", "gzip", "zstd"]

BLOCK = 4 << 20  # part of the bytes: another size is another digest
MAX_WORKERS = 16  # each holds some megabytes
GZIP_LEVEL = 6
ZSTD_LEVEL = 3
# RFC 1952: deflate, no flags, no time, no hint, unknown system.
GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
LAST_BLOCK = b"\x03\x00"  # an empty deflate block, marked as the last


@dataclass(frozen=True, kw_only=True)
class Codec:
    """A compression. name: library and settings. suffix: of the media type. compress: one block,
    independently of the others."""

    name: str
    suffix: str
    compress: Callable[[bytes], bytes]
    is_gzip: bool


def codec(method: Literal["gzip", "zstd"]) -> Codec:
    if method == "gzip":
        name = f"gzip-{GZIP_LEVEL}-zlib{zlib.ZLIB_RUNTIME_VERSION}"
        return Codec(name=name, suffix="+gzip", compress=_gzip_block, is_gzip=True)
    import zstandard

    version = ".".join(map(str, zstandard.ZSTD_VERSION))
    name = f"zstd-{ZSTD_LEVEL}-libzstd{version}"
    return Codec(name=name, suffix="+zstd", compress=_zstd_frame, is_gzip=False)


def compress_image(
    image: Image,
    method: Compression,
    packed: Path,
    progress: Progress,
    workers: int | None = None,
) -> Image:
    """The image with compressed layers, in a layout below `packed`; unchanged for `none`.

    Reuses layers that were compressed before, for this environment or another. The caller holds the
    environment's lock. Raises IntegrityError if a layer does not match its digest, NoSpace if the
    disk is full.
    """
    if method == "none":
        return image
    by = codec(method)
    layout = packed / image.layout.name / by.name
    plain = oci_layout.read(image.layout)
    if plain is None or plain.manifest_digest != image.manifest_digest:
        raise IntegrityError(
            f"{image.layout} is no longer the complete image.",
            advice="Run `provision image build` to make it again.",
        )
    compressed = _read_intact(layout)
    is_current = (
        compressed is not None
        and compressed.config_digest == plain.config_digest
        and compressed.annotations == plain.annotations
    )
    if compressed is None or not is_current:
        with disk_full_raises(layout), oci_layout.staging(layout) as new:
            cached = _compressed_layers(packed, by.name)
            layers = _compress_layers(image, by, cached, new, progress, workers or usable_cpus())
            config = oci_layout.read_config(image.layout, image.image_id)
            compressed = oci_layout.write(new, config, layers, plain.annotations, image.reference)
            layer_cache.record(new, {layer.digest: "" for layer in layers})
        _remove_older_versions(layout, method)
    return replace(
        image,
        layout=layout,
        manifest_digest=compressed.manifest_digest,
        layers=compressed.layers,
    )


def _read_intact(layout: Path) -> LayoutManifest | None:
    """The manifest of a layout if it is complete and all its layers match their digests; corrupt
    layers are removed."""
    manifest = oci_layout.read(layout)
    if manifest is None:
        return None
    digests = [layer.digest for layer in manifest.layers]
    if layer_cache.quarantine_corrupt(layout, digests):
        return None
    return manifest


def _compressed_layers(packed: Path, name: str) -> dict[str, tuple[Path, Layer]]:
    """Layers that were compressed before with a codec, by their diff ids."""
    compressed: dict[str, tuple[Path, Layer]] = {}
    for layout in sorted(packed.glob(f"*/{name}")):
        manifest = _read_intact(layout)
        if manifest is None:
            continue
        config = oci_layout.read_config(layout, manifest.config_digest)
        for diff_id, layer in zip(config["rootfs"]["diff_ids"], manifest.layers, strict=True):
            compressed[diff_id] = (oci_layout.blob(layout, layer.digest), layer)
    return compressed


def _compress_layers(
    image: Image,
    by: Codec,
    cached: Mapping[str, tuple[Path, Layer]],
    new: Path,
    progress: Progress,
    workers: int,
) -> list[Layer]:
    layers: list[Layer] = []
    title = f"compressing layers ({by.name.partition('-')[0]})"
    with progress.meter(title, sum(layer.size for layer in image.layers)) as meter:
        for layer in image.layers:
            compressed = None
            if layer.digest in cached:
                compressed = _link_cached(*cached[layer.digest], oci_layout.blobs(new))
            if compressed is not None:
                meter.advance(layer.size)
                layers.append(replace(compressed, group=layer.group))
            else:
                layers.append(_compress_layer(image.layout, layer, by, new, meter.advance, workers))
    return layers


def _link_cached(path: Path, layer: Layer, blobs: Path) -> Layer | None:
    """Link or copy a blob of another layout; None if it has just been removed."""
    try:
        layer_cache.link_or_copy(path, blobs / path.name)
    except FileNotFoundError:
        return None
    return layer


def _compress_layer(
    layout: Path, layer: Layer, by: Codec, new: Path, advance: Callable[[int], None], workers: int
) -> Layer:
    plain_hash = hashlib.sha256()
    crc = 0

    def plain_blocks() -> Iterator[bytes]:
        nonlocal crc
        # Buffered: an unbuffered read may return less, and other block sizes give another

        # digest.
        with oci_layout.blob(layout, layer.digest).open("rb") as file:
            while block := file.read(BLOCK):
                plain_hash.update(block)
                if by.is_gzip:
                    crc = zlib.crc32(block, crc)
                advance(len(block))
                yield block

    def compressed_parts() -> Iterator[bytes]:
        blocks = _in_parallel(by.compress, plain_blocks(), min(workers, MAX_WORKERS))
        if not by.is_gzip:
            yield from blocks
            return
        yield GZIP_HEADER
        yield from blocks
        yield LAST_BLOCK + struct.pack("<II", crc, layer.size & 0xFFFFFFFF)

    compressed_hash = hashlib.sha256()
    size = 0
    unfinished = oci_layout.blobs(new) / ".packing"
    with unfinished.open("wb") as file:
        for part in compressed_parts():
            compressed_hash.update(part)
            size += len(part)
            file.write(part)
    if f"sha256:{plain_hash.hexdigest()}" != layer.digest:
        raise IntegrityError(
            f"The layer {layer.digest} in {layout} is corrupt.",
            advice="Remove that folder and build the image again.",
        )
    unfinished.replace(oci_layout.blobs(new) / compressed_hash.hexdigest())
    return replace(
        layer,
        digest=f"sha256:{compressed_hash.hexdigest()}",
        size=size,
        media_type=oci_layout.LAYER + by.suffix,
    )


def _in_parallel(
    work: Callable[[bytes], bytes], blocks: Iterable[bytes], workers: int
) -> Iterator[bytes]:
    """The result for each block, in order. zlib and libzstd release the interpreter's lock. At most
    2 * workers blocks are in memory."""
    pending: deque[Future[bytes]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for block in blocks:
            pending.append(pool.submit(work, block))
            if len(pending) >= 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _gzip_block(block: bytes) -> bytes:
    deflate = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return deflate.compress(block) + deflate.flush(zlib.Z_SYNC_FLUSH)


def _zstd_frame(block: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(block)


def _remove_older_versions(layout: Path, method: Compression) -> None:
    """Remove the layers that other versions of the library compressed."""
    for path in layout.parent.glob(f"{method}-*"):
        if path != layout:
            shutil.rmtree(path)
