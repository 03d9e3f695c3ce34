"""Compressed layers: the same bytes on any number of cores, and no layer compressed twice."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provision.adapters import gzip_stream, zstd
from provision.core import parallel
from provision.core.errors import IntegrityError
from provision.core.types import Image, Layer
from provision.image import compress, config, export, layers, oci_layout
from provision.image.layers import LayerEntry
from tests.unit.image.test_image_build import Quiet

CONTENT = random.Random(4).randbytes(200_000) + b"zeros" * 100_000


def write_layers(layout: Path, files: dict[str, bytes]) -> list[Layer]:
    oci_layout.blobs(layout).mkdir(parents=True)
    return [
        layers.write_layer(
            name, [LayerEntry.of(f"opt/{name}", text)], oci_layout.blobs(layout), 0, lambda _: None
        )
        for name, text in files.items()
    ]


def make_image(layout: Path, written: list[Layer] | None = None, **files: bytes) -> Image:
    """An image whose layers hold a file each. written: layers that are there already, instead."""
    if written is None:
        written = write_layers(layout, files)
    manifest = oci_layout.write(
        layout,
        config.image_config({}, {}, written, 0),
        written,
        {"org.provision.recipe": "1"},
        "provision/toy:1",
    )
    return Image(
        reference="provision/toy:1", layout=layout, manifest_digest=manifest.manifest_digest, image_id=manifest.config_digest, base="base",
        base_digest="", lock_sha256="0" * 64, layers=tuple(written),
    )  # fmt: skip


def test_every_python_makes_the_same_manifest(tmp_path: Path) -> None:
    """This file is run by several: what stands here was made by the first."""
    image = make_image(tmp_path / "toy", big=b"zeros" * 100_000, grüße=b"x", empty=b"")
    assert (
        image.manifest_digest
        == "sha256:a074069470ae804677a7b86ff88a25f52b001f073a9a2b768c6c2727c84da7ce"
    )


@pytest.mark.parametrize("method", ["zstd", "gzip"])
def test_one_core_and_four_make_the_same_manifest(
    tmp_path: Path, method: compress.Compression, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gzip_stream, "MEMBER", 100_000)
    image = make_image(tmp_path / "toy", big=CONTENT, empty=b"")

    def compressed(cpus: int) -> Image:
        for module in (parallel, zstd):
            monkeypatch.setattr(module, "usable_cpus", lambda: cpus)
        return compress.compress_image(image, method, tmp_path / str(cpus), Quiet())

    single, four = map(compressed, (1, 4))
    assert single.manifest_digest == four.manifest_digest != image.manifest_digest
    assert single.image_id == image.image_id
    manifest = json.loads(oci_layout.blob(single.layout, single.manifest_digest).read_bytes())
    for row, layer in zip(manifest["layers"], image.layers, strict=True):
        assert row["mediaType"] == f"application/vnd.oci.image.layer.v1.tar+{method}"
        blob = oci_layout.blob(single.layout, row["digest"])
        with blob.open("rb") as file:
            plain = b"".join(layers.decompress(file))
        assert f"sha256:{hashlib.sha256(plain).hexdigest()}" == layer.digest
    assert manifest["layers"][0]["size"] < image.layers[0].size / 2


def test_a_layer_is_compressed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = tmp_path / "packed"
    first = compress.compress_image(
        make_image(tmp_path / "a", big=CONTENT, own=b"1"), "zstd", packed, Quiet()
    )
    changed = make_image(tmp_path / "b", big=CONTENT, own=b"2")
    groups: list[str] = []
    compress_layer = compress._compress_layer

    def recorded(layout: Path, layer: Layer, *more: Any) -> str:
        groups.append(layer.group)
        return compress_layer(layout, layer, *more)

    monkeypatch.setattr(compress, "_compress_layer", recorded)
    second = compress.compress_image(changed, "zstd", packed, Quiet())
    assert groups == ["own"]
    assert second.layers[0] == first.layers[0]
    assert compress.compress_image(changed, "zstd", packed, Quiet()) == second
    assert groups == ["own"]
    fresh = compress.compress_image(changed, "zstd", tmp_path / "elsewhere", Quiet())
    assert fresh.manifest_digest == second.manifest_digest


def test_layers_of_another_library_version_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = make_image(tmp_path / "toy", big=CONTENT)
    now = compress.compress_image(image, "zstd", tmp_path / "packed", Quiet())
    monkeypatch.setattr("provision.adapters.zstd.zstd.zstd_version", "9.9.0")
    later = compress.compress_image(image, "zstd", tmp_path / "packed", Quiet())
    assert (
        [path.name for path in (tmp_path / "packed" / "toy").iterdir()]
        == [later.layout.name]
        != [now.layout.name]
    )


def test_a_corrupt_layer_is_not_compressed(tmp_path: Path) -> None:
    image = make_image(tmp_path / "toy", big=CONTENT)
    blob = oci_layout.blob(image.layout, image.layers[0].digest)
    content = bytearray(blob.read_bytes())
    content[5000] ^= 1
    blob.write_bytes(content)
    with pytest.raises(IntegrityError, match="is corrupt"):
        compress.compress_image(image, "zstd", tmp_path / "packed", Quiet())
    assert not list((tmp_path / "packed").rglob("index.json"))
    with pytest.raises(IntegrityError, match="no longer the complete image"):
        compress.compress_image(
            replace(image, manifest_digest="sha256:other"), "zstd", tmp_path / "packed", Quiet()
        )


def test_corrupt_compressed_layer_is_rebuilt(tmp_path: Path) -> None:
    image = make_image(tmp_path / "toy", big=CONTENT)
    first = compress.compress_image(image, "zstd", tmp_path / "packed", Quiet())
    blob = oci_layout.blob(first.layout, first.layers[0].digest)
    content = bytearray(blob.read_bytes())
    content[1000] ^= 1
    blob.write_bytes(content)
    assert compress.compress_image(image, "zstd", tmp_path / "packed", Quiet()) == first
    assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name


def test_a_compressed_image_can_be_exported(tmp_path: Path) -> None:
    image = compress.compress_image(
        make_image(tmp_path / "toy", big=CONTENT), "zstd", tmp_path / "packed", Quiet()
    )
    export.export_image(image, tmp_path / "out")
    layout = oci_layout.read(tmp_path / "out")
    assert layout is not None
    assert (layout.manifest_digest, layout.layers) == (image.manifest_digest, image.layers)
