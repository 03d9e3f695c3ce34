"""OCI layouts: complete or absent."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from provision.core.atomic import backup_path
from provision.core.types import Layer
from provision.image import layers, oci_layout
from provision.image.layers import LayerEntry


def make(layout: Path, text: bytes = b"x") -> oci_layout.LayoutManifest:
    with oci_layout.staging(layout) as new:
        layer: Layer = layers.write_layer(
            "rest", [LayerEntry.of("x", text)], oci_layout.blobs(new), 0, lambda amount: None
        )
        return oci_layout.write(
            new, {"os": "linux", "architecture": "arm64"}, [layer], {"a": "b"}, "provision/x:1"
        )


def test_a_written_layout_is_read_back(tmp_path: Path) -> None:
    written = make(tmp_path / "x")
    assert oci_layout.read(tmp_path / "x") == written
    assert json.loads((tmp_path / "x" / "oci-layout").read_text()) == {
        "imageLayoutVersion": "1.0.0"
    }
    assert list(tmp_path.iterdir()) == [tmp_path / "x"]


def test_the_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    make(tmp_path / "x")
    make(tmp_path / "y")
    assert (tmp_path / "x" / "index.json").read_bytes() == (
        tmp_path / "y" / "index.json"
    ).read_bytes()


def test_a_new_layout_replaces_the_old_one(tmp_path: Path) -> None:
    make(tmp_path / "x")
    second = make(tmp_path / "x", b"other")
    assert oci_layout.read(tmp_path / "x") == second
    assert len(list(oci_layout.blobs(tmp_path / "x").iterdir())) == 3


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_failed_build_leaves_the_old_layout(tmp_path: Path, error: type[BaseException]) -> None:
    before = make(tmp_path / "x")
    with pytest.raises(error), oci_layout.staging(tmp_path / "x") as new:
        (new / "half").write_text("x")
        raise error
    assert oci_layout.read(tmp_path / "x") == before
    assert list(tmp_path.iterdir()) == [tmp_path / "x"]


def test_leftovers_of_a_killed_build_are_removed(tmp_path: Path) -> None:
    for name in (".x.00000000", ".x.y.00000000"):
        (tmp_path / f"{name}{oci_layout.MARKER}" / "blobs").mkdir(parents=True)
    (tmp_path / f".x.00000000{oci_layout.MARKER}" / oci_layout.MARKER).touch()
    make(tmp_path / "x")
    assert {path.name for path in tmp_path.iterdir()} == {
        "x",
        f".x.y.00000000{oci_layout.MARKER}",
    }


def test_a_build_killed_between_its_renames_restores_the_old_layout(tmp_path: Path) -> None:
    before = make(tmp_path / "x")
    (tmp_path / "x").rename(backup_path(tmp_path / "x"))
    oci_layout.remove_leftovers(tmp_path / "x")
    assert oci_layout.read(tmp_path / "x") == before
    assert list(tmp_path.iterdir()) == [tmp_path / "x"]


def test_two_runs_to_one_layout_do_not_share_a_staging_directory(tmp_path: Path) -> None:
    with oci_layout.staging(tmp_path / "x") as new:
        (new / "mine").touch()
        make(tmp_path / "x")
        assert (new / "mine").exists()
    assert (tmp_path / "x" / "mine").exists()
    assert list(tmp_path.iterdir()) == [tmp_path / "x"]


def test_nobody_else_may_write_into_a_layout(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        make(tmp_path / "images" / "lab")
    finally:
        os.umask(umask)
    folders = [path for path in (tmp_path / "images").rglob("*") if path.is_dir()]
    assert folders
    for folder in (tmp_path / "images", *folders):
        assert not folder.stat().st_mode & 0o022, folder


def test_a_missing_layout_reads_as_none(tmp_path: Path) -> None:
    assert oci_layout.read(tmp_path / "x") is None


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", '{"manifests": []}', '{"manifests": [{"digest": "sha256:0"}]}']
)
def test_empty_index_reads_as_none(tmp_path: Path, text: str) -> None:
    make(tmp_path / "x")
    (tmp_path / "x" / "index.json").write_text(text)
    assert oci_layout.read(tmp_path / "x") is None


def test_a_corrupt_layout_reads_as_none(tmp_path: Path) -> None:
    layout = tmp_path / "x"
    written = make(layout)
    os.truncate(oci_layout.blob(layout, written.layers[0].digest), 10)
    assert oci_layout.read(layout) is None
    written = make(layout)
    oci_layout.blob(layout, written.config_digest).write_text("{}")
    assert oci_layout.read(layout) is None
    written = make(layout)
    oci_layout.blob(layout, written.manifest_digest).unlink()
    assert oci_layout.read(layout) is None
