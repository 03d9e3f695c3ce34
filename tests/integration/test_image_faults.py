"""What goes wrong while an image is built: the disk fills up, the process is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from provision.adapters.docker import require_engine
from provision.core.errors import IntegrityError, NoSpace
from provision.image import oci_layout
from provision.image.docker import load_image, remove_images
from tests.unit.image.test_image_layer_build import CHANGED, FIRST, Lab, Listening, flip

MIB = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 32 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", disk], check=True)
    yield disk
    subprocess.run(["umount", disk], check=True)


class Filling(Listening):
    """Fills the disk while the image is written: what another user might do."""

    def __init__(self, disk: Path) -> None:
        super().__init__()
        self._other = disk / "other"

    def advance(self, amount: int) -> None:
        super().advance(amount)
        if self.written > MIB and not self._other.exists():
            self._fill()

    def _fill(self) -> None:
        with self._other.open("wb", buffering=0) as file:
            while True:
                try:
                    file.write(bytes(64 << 10))
                except OSError:
                    return


@pytest.mark.mounts
def test_disk_fills_up_during_build(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(small_disk)
    before = lab.build("toy", {"greet": "1.0"})
    monkeypatch.setattr(
        "tests.unit.image.test_image_layer_build.Listening", lambda: Filling(small_disk)
    )
    with pytest.raises(NoSpace, match=r"/images/toy was not written"):
        lab.build("toy", FIRST)
    monkeypatch.undo()
    assert [path.name for path in (small_disk / "images").iterdir()] == ["toy"]
    layout = oci_layout.read(before.layout)
    assert layout is not None
    assert layout.manifest_digest == before.manifest_digest
    (small_disk / "other").unlink()
    assert lab.build("toy", FIRST).layers[:1] == before.layers[:1]


@pytest.mark.mounts
def test_too_small_disk_is_detected_beforehand(small_disk: Path) -> None:
    lab = Lab(small_disk)
    (small_disk / "other").write_bytes(bytes(15 * MIB))
    with pytest.raises(NoSpace, match=r"The image needs "):
        lab.build("toy", FIRST)
    assert list((small_disk / "images").iterdir()) == []


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_kill_at_any_step_leaves_old_image_or_none(tmp_path: Path, stride: int) -> None:
    script = Path(__file__).parent / "killed_build.py"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    result = subprocess.run(
        [sys.executable, script, tmp_path, str(stride)],
        capture_output=True,
        text=True,
        env=env,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    state = json.loads(result.stdout)
    assert state["from nothing: none"] > 20 // stride
    assert state["over another: old"] > 20 // stride
    assert "over another: none" not in state
    assert state["from nothing: new"] > 0
    assert state["over another: new"] > 0


def test_finished_layers_of_a_killed_build_are_reused(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    whole = lab.build("toy", FIRST)
    half = whole.layout.with_name(f".toy.00000000{oci_layout.MARKER}")
    whole.layout.rename(half)
    for name in (
        "index.json",
        "oci-layout",
        *(f"blobs/sha256/{digest[7:]}" for digest in (whole.image_id, whole.manifest_digest)),
    ):
        (half / name).unlink()
    (half / oci_layout.MARKER).touch()
    (half / "blobs" / "sha256" / ".large").write_bytes(b"half a layer")
    assert lab.build("toy", CHANGED).layers[:5] == whole.layers[:5]
    assert lab.progress.written < 10_000
    assert [path.name for path in whole.layout.parent.iterdir()] == ["toy"]


@pytest.mark.docker
def test_damaged_layer_refused_by_the_engine_is_named(tmp_path: Path) -> None:
    client, lab = require_engine(), Lab(tmp_path)
    first_image = lab.build("damaged", FIRST)
    torch = next(layer for layer in first_image.layers if layer.group == "torch")
    flip(oci_layout.blob(first_image.layout, torch.digest), unseen=True)
    try:
        with pytest.raises(IntegrityError, match=f"{torch.digest[7:]} is corrupt"):
            load_image(first_image, client, Listening())
        assert not client.api.images("provision/damaged")
        again = lab.build("damaged", FIRST)
        assert load_image(again, client, Listening())
        assert client.images.get(first_image.image_id).tags
    finally:
        remove_images(again.layout, client)
