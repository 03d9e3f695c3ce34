"""Pulled layouts: what tells whether one is complete, and what discards one that is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from provision.image import layer_cache, layers, oci_layout
from provision.image.layers import LayerEntry
from provision.image.oci_layout import LayoutManifest
from provision.image.registry.pull import discard_if_incomplete, is_complete


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    return tmp_path / "pulled"


def write(layout: Path) -> LayoutManifest:
    entries = [LayerEntry.of("x", b"content")]
    with oci_layout.staging(layout) as new:
        layer = layers.write_layer("rest", entries, oci_layout.blobs(new), 0, lambda amount: None)
        manifest = oci_layout.write(
            new, {"os": "linux", "architecture": "amd64"}, [layer], {}, "lab/toy:1"
        )
        layer_cache.record(new, {layer.digest: ""})
    return manifest


def names(layout: Path) -> set[str]:
    return {path.relative_to(layout).as_posix() for path in layout.rglob("*") if path.is_file()}


def test_an_intact_layout_stays(layout: Path) -> None:
    write(layout)
    before = names(layout)
    discard_if_incomplete(layout)
    assert is_complete(layout)
    assert names(layout) == before


def test_interrupted_pull_is_kept_for_the_next(layout: Path) -> None:
    write(layout)
    (layout / "index.json").unlink()
    before = names(layout)
    discard_if_incomplete(layout)
    assert not is_complete(layout)
    assert names(layout) == before


def corrupt_layer(layout: Path, manifest: LayoutManifest) -> None:
    layer = manifest.layers[0]
    oci_layout.blob(layout, layer.digest).write_bytes(bytes(layer.size))


def corrupt_manifest(layout: Path, manifest: LayoutManifest) -> None:
    oci_layout.blob(layout, manifest.manifest_digest).write_bytes(b"{}")


def missing_layer(layout: Path, manifest: LayoutManifest) -> None:
    oci_layout.blob(layout, manifest.layers[0].digest).unlink()


def test_a_layout_without_a_valid_record_is_hashed_and_stays(layout: Path) -> None:
    manifest = write(layout)
    (layout / layer_cache.FILE).write_text('{"sha256:0": {"cache_key": 1}}')
    discard_if_incomplete(layout)
    assert is_complete(layout)
    assert [layer.digest for layer in layer_cache.read(layout)] == [manifest.layers[0].digest]


@pytest.mark.parametrize("harm", [corrupt_layer, corrupt_manifest, missing_layer])
def test_a_layout_that_is_no_longer_intact_loses_its_index(
    layout: Path, harm: Callable[[Path, LayoutManifest], None]
) -> None:
    manifest = write(layout)
    harm(layout, manifest)
    before = names(layout)
    assert is_complete(layout)  # asking changes nothing
    assert names(layout) == before
    discard_if_incomplete(layout)
    assert not is_complete(layout)
    layer = oci_layout.blob(layout, manifest.layers[0].digest)
    assert layer.exists() == (harm is corrupt_manifest)
