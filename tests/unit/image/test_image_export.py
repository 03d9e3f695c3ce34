"""Images in layouts of the user's choice, none of which is ever replaced."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from provision.core.errors import (
    InUse,
    InvalidSpec,
)
from provision.core.types import Image, Layer
from provision.image import disk_base, docker, export, oci_layout
from tests.unit.image.test_image_disk_base import LAYERS, config, layers_of, layout
from tests.unit.image.test_image_layers import digest


@pytest.fixture
def image(tmp_path: Path) -> Image:
    folder = layout(tmp_path / "image")
    manifest = json.loads((folder / "index.json").read_text())["manifests"][0]["digest"]
    result = tuple(Layer(group="base", digest=digest(layer), size=len(layer)) for layer in LAYERS)
    return Image(
        reference="provision/toy:1", layout=folder, manifest_digest=manifest, image_id=digest(config()), base="lab:12",
        base_digest=digest(b""), lock_sha256="0" * 64, layers=result,
    )  # fmt: skip


def test_an_exported_image_is_complete(image: Image, tmp_path: Path) -> None:
    export.export_image(image, tmp_path / "out" / "toy")
    base = disk_base.read_disk_base(f"oci:{tmp_path / 'out' / 'toy'}")
    present = (base.reference, base.digest, layers_of(base, tmp_path / "blobs"))
    assert present == ("lab:12", image.image_id, LAYERS)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["toy"]


@pytest.mark.parametrize("settings", [None, {}])
def test_an_image_without_settings_is_recognized_by_its_layers(
    image: Image, settings: object
) -> None:
    """In an engine, which says every setting by its name."""
    document = {**json.loads(config()), "config": settings}
    content = json.dumps(document).encode()
    own_image = replace(image, image_id=digest(content))
    oci_layout.blob(image.layout, own_image.image_id).write_bytes(content)
    engine_image = {
        "RootFS": {"Layers": [layer.digest for layer in image.layers]},
        "Config": {"Env": None, "Labels": {}, "User": ""},
    }
    assert docker.is_same(engine_image, own_image)
    assert not docker.is_same({**engine_image, "Config": {"User": "root"}}, own_image)


def test_what_is_there_is_never_replaced(image: Image, tmp_path: Path) -> None:
    """Neither a folder of the user's, nor a layout, nor a file."""
    export.export_image(image, tmp_path / "layout")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("years")
    (tmp_path / "file").write_text("")
    before = contents(tmp_path)
    for name in ("layout", "home", "file"):
        with pytest.raises(InUse, match=r"is not an empty folder.*rm -r"):
            export.export_image(image, tmp_path / name)
    assert contents(tmp_path) == before


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_mount_point_is_not_replaced(
    image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is empty, and a folder in it will do."""
    (tmp_path / "disk").mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == tmp_path / "disk")
    with pytest.raises(InUse, match=r"is the mount point of a file system.*Choose a folder in it"):
        export.export_image(image, tmp_path / "disk")
    assert not list((tmp_path / "disk").iterdir())
    export.export_image(image, tmp_path / "disk" / "toy")
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["toy"]


def test_an_empty_folder_is_replaced(image: Image, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    export.export_image(image, tmp_path / "empty")
    assert disk_base.read_disk_base(f"oci:{tmp_path / 'empty'}").digest == image.image_id


@pytest.mark.parametrize("text", ["", "oci", "oci:", "registry:x", "docker", "oci-archive:x"])
def test_invalid_outputs(text: str) -> None:
    with pytest.raises(InvalidSpec, match="is not a destination for an image"):
        export.parse_output(text)


def test_a_symbolic_link_stays(image: Image, tmp_path: Path) -> None:
    """To a disk with room, perhaps."""
    folder = tmp_path / "links"
    folder.mkdir()
    (folder / "scratch").mkdir()
    (folder / "link").symlink_to("scratch/out")
    export.export_image(image, folder / "link")
    assert (folder / "link").is_symlink()
    assert [path.name for path in (folder / "scratch").iterdir()] == ["out"]
    assert not list(folder.glob(".*"))
