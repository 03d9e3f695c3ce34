"""Building a layout: reused while current, refused without space, never half-written."""

from __future__ import annotations

import errno
import hashlib
import io
import shutil
import tarfile
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from provision import __version__
from provision.core.errors import NoSpace
from provision.core.spec_fields import Spec
from provision.core.types import Image, Lock, LockedPackage, MeterContext, Resolution
from provision.image import oci_layout
from provision.image.base import BaseImage
from provision.image.build import build_image
from provision.image.cache_key import Recipe
from tests.unit.image.test_image_layers import archive as layer_of

LIBC = b"GNU C Library (Debian GLIBC 2.36-9) stable release version 2.36."
LAYER = layer_of(("bin/sh", b"shell"), ("lib64/libc.so.6", LIBC))
DIGEST = f"sha256:{hashlib.sha256(LAYER).hexdigest()}"


class Quiet:
    def info(self, text: str) -> None:
        pass

    def warn(self, text: str) -> None:
        pass

    def meter(self, title: str, total: int) -> MeterContext:
        return self

    def advance(self, amount: int) -> None:
        pass

    def __enter__(self) -> Quiet:
        return self

    def __exit__(self, *exc: object) -> None:
        pass


def archive() -> list[bytes]:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as members:
        member = tarfile.TarInfo("x/layer.tar")
        member.size = len(LAYER)
        members.addfile(member, io.BytesIO(LAYER))
    return [buffer.getvalue()]


BASE = BaseImage(
    reference="mine:1",
    digest="sha256:base",
    size=len(LAYER),
    diff_ids=(DIGEST,),
    environment=("LANG=C",),
    archive=archive,
)
RESOLUTION = Resolution(
    spec=Spec(name="toy", torch="2.3", cuda=None),
    torch="2.3.1",
    local_version="2.3.1+cpu",
    source="wheels",
    cuda=None,
    python="3.11",
    nccl=None,
    cudnn=None,
    architectures=(),
    glibc="2.17",
    driver_floor=None,
    needs_local_build=False,
    channels=(),
    pins=(),
    virtual_packages=(),
    choices=(),
)
PYTHON = LockedPackage(
    manager="conda",
    name="python",
    version="3.11.7",
    url="https://example.org/c/linux-64/python.conda",
    sha256="12" * 32,
)
LOCK = Lock(
    path=Path("conda-lock.yml"),
    sha256="ab" * 32,
    inputs_sha256="",
    content_hash="",
    packages=(PYTHON,),
    python_from="channel",
    portable=True,
)


def install(staging: Path) -> None:
    (staging / "bin").mkdir(parents=True)
    (staging / "bin" / "python").write_text("python")


def fail(number: int) -> Callable[[Path], None]:
    def failing(staging: Path) -> None:
        raise OSError(number, "failed")

    return failing


def build(
    folder: Path,
    install: Callable[[Path], None] = install,
    lock: Lock = LOCK,
    base: BaseImage = BASE,
    code: bytes = b"print('smoke')\n",
) -> Image:
    runtime = {"provision_runtime/__main__.py": code}
    return build_image(
        Recipe(resolution=RESOLUTION, lock=lock, base=base, runtime=runtime),
        layout=folder / "images" / "toy",
        install=install,
        byte_code=None,
        progress=Quiet(),
    )


def test_layers_and_labels_of_an_image(tmp_path: Path) -> None:
    built = build(tmp_path)
    assert [layer.group for layer in built.layers] == ["base", "python", "provision"]
    assert built.layers[0].digest == DIGEST
    written = oci_layout.read(built.layout)
    assert written is not None
    assert (
        written.annotations["org.provision.lock"],
        written.annotations["org.provision.tool"],
    ) == (LOCK.sha256, __version__)
    assert written.annotations["org.provision.base.id"] == "sha256:base"


def test_image_is_reused_until_its_inputs_change(tmp_path: Path) -> None:
    built = build(tmp_path)
    assert build(tmp_path, fail(errno.EIO)) == built
    for changed in (replace(BASE, reference="mine:2"), replace(BASE, environment=("LANG=de_DE",))):
        other = build(tmp_path, base=changed)
        assert other.manifest_digest != built.manifest_digest
        built = other


def test_changed_runtime_code_gets_into_the_image(tmp_path: Path) -> None:
    built = build(tmp_path)
    other = build(tmp_path, code=b"print('another')\n")
    assert other.layers[:2] == built.layers[:2]
    assert other.layers[2] != built.layers[2]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk(tmp_path: Path, number: int) -> None:
    with pytest.raises(
        NoSpace, match=r" .*/images/toy was not written; .* free in .*/images now\. Free space"
    ):
        build(tmp_path, fail(number))
    assert list((tmp_path / "images").iterdir()) == []


def test_too_little_space_is_reported_before_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10, 5, 5))
    with pytest.raises(NoSpace, match=r"needs "):
        build(tmp_path)
    assert list((tmp_path / "images").iterdir()) == []


def test_other_errors_are_raised(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="failed"):
        build(tmp_path, fail(errno.EIO))
