"""Layers compressed with zstd or gzip: the same bytes on any number of cores, and no layer is
compressed twice.

The library decides the bytes, so compressed layers are stored under its version.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from provision.adapters import gzip_stream, zstd
from provision.adapters.http import sha256_of
from provision.core.system_errors import disk_full_raises
from provision.core.types import Image, Layer, Progress
from provision.image import layer_cache, oci_layout
from provision.image.oci_layout import LayoutManifest

Compression = Literal["none", "gzip", "zstd"]


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
    if method == "gzip":
        version = f"gzip-{gzip_stream.LEVEL}-zlib{gzip_stream.library_version()}"
    else:
        version = f"zstd-{zstd.LEVEL}-libzstd{zstd.library_version()}"
    layout = packed / image.layout.name / version
    plain = oci_layout.read_image(image)
    compressed = _read_intact(layout)
    is_current = (
        compressed is not None
        and compressed.config_digest == plain.config_digest
        and compressed.annotations == plain.annotations
    )
    if compressed is None or not is_current:
        with disk_full_raises(layout), oci_layout.staging(layout) as new:
            cached = _compressed_layers(packed, version)
            layers = _compress_layers(image, method, cached, new, progress, workers)
            config = oci_layout.read_config(image.layout, image.image_id)
            compressed = oci_layout.write(new, config, layers, plain.annotations, image.reference)
            layer_cache.record(new, {layer.digest: "" for layer in layers})
        # The layers that other versions of the library compressed.
        for path in layout.parent.glob(f"{method}-*"):
            if path != layout:
                shutil.rmtree(path)
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


def _compressed_layers(packed: Path, version: str) -> dict[str, tuple[Path, Layer]]:
    """Layers that were compressed before, by their diff ids."""
    compressed: dict[str, tuple[Path, Layer]] = {}
    for layout in sorted(packed.glob(f"*/{version}")):
        manifest = _read_intact(layout)
        if manifest is None:
            continue
        config = oci_layout.read_config(layout, manifest.config_digest)
        for diff_id, layer in zip(config["rootfs"]["diff_ids"], manifest.layers, strict=True):
            compressed[diff_id] = (oci_layout.blob(layout, layer.digest), layer)
    return compressed


def _compress_layers(
    image: Image,
    method: Compression,
    cached: Mapping[str, tuple[Path, Layer]],
    new: Path,
    progress: Progress,
    workers: int | None,
) -> list[Layer]:
    layers: list[Layer] = []
    total = sum(layer.size for layer in image.layers)
    with progress.meter("compressing layers", total) as meter:
        for layer in image.layers:
            compressed = None
            if layer.digest in cached:
                compressed = _link_cached(*cached[layer.digest], oci_layout.blobs(new))
            if compressed is not None:
                meter.advance(layer.size)
                layers.append(replace(compressed, group=layer.group))
            else:
                layers.append(
                    _compress_layer(image.layout, layer, method, new, meter.advance, workers)
                )
    return layers


def _link_cached(path: Path, layer: Layer, blobs: Path) -> Layer | None:
    """Link or copy a blob of another layout; None if it has just been removed."""
    try:
        layer_cache.link_or_copy(path, blobs / path.name)
    except FileNotFoundError:
        return None
    return layer


def _compress_layer(
    layout: Path,
    layer: Layer,
    method: Compression,
    new: Path,
    advance: Callable[[int], None],
    workers: int | None,
) -> Layer:
    def chunks() -> Iterator[bytes]:
        for chunk in layer_cache.verified_chunks(oci_layout.blob(layout, layer.digest)):
            advance(len(chunk))
            yield chunk

    unfinished = oci_layout.blobs(new) / ".packing"
    write = gzip_stream.compress_to if method == "gzip" else zstd.compress_to
    write(chunks(), unfinished, workers)
    digest = f"sha256:{sha256_of(unfinished)}"
    path = oci_layout.blob(new, digest)
    unfinished.replace(path)
    return replace(
        layer, digest=digest, size=path.stat().st_size, media_type=f"{oci_layout.LAYER}+{method}"
    )
