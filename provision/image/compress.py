"""Layers compressed with zstd or gzip: the same bytes on any number of cores, and no layer is
compressed twice.

The library decides the bytes, so compressed layers are stored under its version.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

from provision.adapters import gzip_stream, zstd
from provision.adapters.http import sha256_of
from provision.core.system_errors import disk_full_raises
from provision.core.types import Image, Layer, Progress
from provision.image import layer_cache, oci_layout, zstd_chunked
from provision.image.layer_groups import BASE_GROUP

Compression = Literal["none", "gzip", "zstd", "zstd:chunked"]


def compress_image(
    image: Image,
    method: Compression,
    packed: Path,
    progress: Progress,
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
        version = f"{method}-{zstd.LEVEL}-libzstd{zstd.library_version()}"
    layout = packed / image.layout.name / version
    plain = oci_layout.read_image(image)
    # A compressed layer's cache key is its diff id.
    cached = [row for path in sorted(packed.glob(f"*/{version}")) for row in layer_cache.read(path)]
    layers, keys, tables = [], {}, {}
    total = sum(layer.size for layer in image.layers)
    with (
        disk_full_raises(layout),
        oci_layout.staging(layout) as new,
        progress.meter("compressing layers", total) as meter,
    ):
        for layer in image.layers:
            same = [row for row in cached if row.key == layer.digest]
            digest = layer_cache.link_first(same, new)
            if digest is None:
                digest = _compress_layer(image.layout, layer, method, new, meter.advance)
            else:
                meter.advance(layer.size)
            keys[digest] = layer.digest
            size = oci_layout.blob(new, digest).stat().st_size
            media_type = f"{oci_layout.LAYER}+{method.partition(':')[0]}"
            layers.append(replace(layer, digest=digest, size=size, media_type=media_type))
            tables[digest] = zstd_chunked.layer_annotations(oci_layout.blob(new, digest))
        config = oci_layout.read_config(image.layout, image.image_id)
        manifest = oci_layout.write(new, config, layers, plain.annotations, image.reference, tables)
        layer_cache.record(new, keys)
    # The layers that other versions of the library compressed.
    for path in layout.parent.glob(f"{method}-*"):
        if path != layout:
            shutil.rmtree(path)
    return replace(
        image, layout=layout, manifest_digest=manifest.manifest_digest, layers=manifest.layers
    )


def _compress_layer(
    layout: Path,
    layer: Layer,
    method: Compression,
    new: Path,
    advance: Callable[[int], None],
) -> str:
    """Returns the digest of the new blob."""

    def chunks() -> Iterator[bytes]:
        for chunk in layer_cache.verified_chunks(oci_layout.blob(layout, layer.digest)):
            advance(len(chunk))
            yield chunk

    unfinished = oci_layout.blobs(new) / ".packing"
    if method == "gzip":
        gzip_stream.compress_to(chunks(), unfinished)
    elif method == "zstd" or layer.group == BASE_GROUP:  # a base may have any kind of tar
        zstd.compress_to(chunks(), unfinished)
    else:
        source = oci_layout.blob(layout, layer.digest)
        zstd_chunked.compress_to(chunks(), source, unfinished)
    digest = f"sha256:{sha256_of(unfinished)}"
    unfinished.replace(oci_layout.blob(new, digest))
    return digest
