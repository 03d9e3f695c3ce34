"""Which layers are made, which are reused, and that corrupt ones never are."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import random
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from provision.core.errors import IntegrityError, InvalidSpec
from provision.core.types import Image, LockedPackage
from provision.image import compress, config, export, layer_build, layer_cache, oci_layout
from provision.image.build import build_image
from provision.image.cache_key import Recipe
from provision.image.layer_groups import LARGE
from provision.image.layers import LayerEntry
from tests.unit.image.test_image_build import BASE, LOCK, PYTHON, RESOLUTION, Quiet
from tests.unit.image.test_image_tree_files import install

WHEELS = {"nvidia-toy": 3_000_000, "torch": 2_000_000, "numpy": LARGE, "greet": 900, "einops": 1000}


class Listening(Quiet):
    """Remembers what it was warned of, and how much was written."""

    def __init__(self) -> None:
        self.warned: list[str] = []
        self.written = 0

    def warn(self, text: str) -> None:
        self.warned.append(text)

    def advance(self, amount: int) -> None:
        self.written += amount


RUNTIME = {"provision_runtime/__main__.py": b"print('smoke')\n"}


@dataclass
class Lab:
    """Environments whose wheels are random bytes, each told by its version."""

    root: Path
    installed: int = 0
    progress: Listening = field(default_factory=Listening)

    def install(self, versions: dict[str, str]) -> Callable[[Path], None]:
        def installing(staging: Path) -> None:
            self.installed += 1
            (staging / "bin").mkdir(parents=True)
            (staging / "bin" / "python").write_text("python")
            for package, version in versions.items():
                files = {f"{package.replace('-', '_')}.bin": _content(package, version)}
                install(staging, package, files, version)

        return installing

    def build(self, name: str, versions: dict[str, str], **changed: Any) -> Image:
        packages = (PYTHON, *(_locked(package, version) for package, version in versions.items()))
        lock = replace(
            LOCK, packages=packages, sha256=hashlib.sha256(repr(packages).encode()).hexdigest()
        )
        resolution = replace(RESOLUTION, spec=replace(RESOLUTION.spec, name=name))
        self.progress = Listening()
        recipe = Recipe(resolution=resolution, lock=lock, base=BASE, runtime=RUNTIME)
        return build_image(
            replace(recipe, **changed),
            layout=self.root / "images" / name,
            install=self.install(versions),
            byte_code=None,
            progress=self.progress,
        )


@functools.cache
def _content(package: str, version: str) -> bytes:
    return random.Random(f"{package} {version}").randbytes(WHEELS[package])


def _locked(name: str, version: str) -> LockedPackage:
    digest = hashlib.sha256(f"{name} {version}".encode()).hexdigest()
    return LockedPackage(
        manager="pip", name=name, version=version, url=f"https://example.org/{name}", sha256=digest
    )


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


FIRST = dict.fromkeys(WHEELS, "1.0")
CHANGED = {**FIRST, "einops": "1.1"}


def inodes(built: Image, groups: Iterable[str]) -> dict[str, int]:
    return {
        layer.group: oci_layout.blob(built.layout, layer.digest).stat().st_ino
        for layer in built.layers
        if layer.group in groups
    }


def flip(blob: Path, *, unseen: bool = False) -> None:
    """One bit of a file, by a program that leaves the file's time as it was, or not."""
    status = blob.stat()
    content = bytearray(blob.read_bytes())
    content[len(content) // 2] ^= 1
    with blob.open("r+b") as file:
        file.write(content)
    os.utime(blob, ns=(status.st_atime_ns, status.st_mtime_ns + (0 if unseen else 1)))


def test_groups_are_layers_from_large_to_small(lab: Lab) -> None:
    image = lab.build("toy", FIRST)
    assert [layer.group for layer in image.layers] == [
        "base",
        "cuda",
        "torch",
        "python",
        "large",
        "rest",
        "provision",
    ]


def test_changed_small_package_rebuilds_only_its_layer(lab: Lab) -> None:
    """The digest is that of an image made from nothing."""
    first = lab.build("toy", FIRST)
    before = inodes(first, ("base", "cuda", "torch", "python", "large"))
    second = lab.build("toy", CHANGED)
    assert lab.progress.written < 10_000
    assert inodes(second, before) == before
    assert [
        earlier == other for earlier, other in zip(first.layers, second.layers, strict=True)
    ] == [True] * 5 + [False, True]
    assert (
        Lab(lab.root / "elsewhere").build("toy", CHANGED).manifest_digest == second.manifest_digest
    )


def test_the_same_packages_are_not_installed_again(lab: Lab) -> None:
    """If only our own files change; but if a layer is corrupt, they are."""
    first = lab.build("toy", FIRST)
    assert lab.installed == 1
    second = lab.build("toy", FIRST, runtime={"provision_runtime/__main__.py": b"other"})
    assert lab.installed == 1 and second.layers[:-1] == first.layers[:-1] != second.layers
    flip(oci_layout.blob(second.layout, second.layers[2].digest))
    assert lab.build("toy", FIRST, runtime=RUNTIME) == first
    assert lab.installed == 2


def test_environments_differing_in_a_small_package_share_the_rest(lab: Lab) -> None:
    """The proportions are those of torch 2.3 with CUDA 12.1 scaled down, but for the base, which is smaller: 97 % is asked for."""
    first, other = lab.build("toy", FIRST), lab.build("other", CHANGED)
    shared = {layer.digest: layer.size for layer in first.layers} | {
        layer.digest: layer.size for layer in other.layers
    }
    own_bytes = sum(layer.size for layer in other.layers)
    common = sum(layer.size for layer in first.layers if layer in other.layers)
    assert common / own_bytes > 0.999
    on_disk = {
        path.stat().st_ino: path.stat().st_size
        for built in (first, other)
        for path in oci_layout.blobs(built.layout).iterdir()
    }
    assert sum(on_disk.values()) < sum(shared.values()) + 20_000


def test_keys_cover_everything_that_decides_the_bytes() -> None:
    recipe = Recipe(resolution=RESOLUTION, lock=LOCK, base=BASE, runtime={}, epoch=1)
    entry = LayerEntry(path="a", mode=0o644, sha256="12" * 32)
    keys = {
        recipe.layer_key([entry]),
        replace(recipe, epoch=2).layer_key([entry]),
        recipe.layer_key([]),
        recipe.layer_key([replace(entry, path="b")]),
        recipe.layer_key([replace(entry, mode=0o755)]),
        recipe.layer_key([replace(entry, sha256="34" * 32)]),
        recipe.layer_key([LayerEntry(path="a", kind="link", mode=0o644, target="b")]),
    }
    assert len(keys) == 7

    def of(**changed: Any) -> str:
        return replace(recipe, **changed).packages_digest

    other_name = replace(RESOLUTION, spec=replace(RESOLUTION.spec, name="other"))
    assert of() == of(resolution=other_name)
    other_lock = replace(LOCK, sha256="5" * 64)
    digests = {of(), of(lock=other_lock), of(epoch=2), of(built_on="linux-64")}
    assert len(digests) == 4


def test_the_recipe_covers_the_config(monkeypatch: pytest.MonkeyPatch) -> None:
    item = Recipe(resolution=RESOLUTION, lock=LOCK, base=BASE, runtime={}, epoch=1)
    before = item.digest
    monkeypatch.setattr(config, "USER", "0:0")
    assert item.digest != before


@pytest.mark.parametrize(
    ("changed", "glibc"),
    [
        ({}, "2.17"),
        ({"depends": ("__glibc >=2.36", "zlib >=1.2,<2")}, "2.36"),
        ({"depends": ("__glibc >=2.9,<3.0.a0",)}, "2.17"),
        (
            {
                "manager": "pip",
                "url": "https://x.org/a-1-cp311-cp311-manylinux_2_34_x86_64.whl#sha256=0",
            },
            "2.34",
        ),
        (
            {
                "manager": "pip",
                "url": "https://x.org/a-1-cp311-cp311-manylinux_2_28_x86_64.manylinux_2_34_x86_64.whl",
            },
            "2.28",
        ),
        (
            {
                "manager": "pip",
                "url": "https://x.org/a-1-cp311-cp311-manylinux_2_28_x86_64.manylinux2014_x86_64.whl",
            },
            "2.17",
        ),
    ],
)
def test_the_required_glibc_is_that_of_the_packages(changed: dict[str, Any], glibc: str) -> None:
    lock = replace(LOCK, packages=(replace(PYTHON, **changed),))
    assert Recipe(resolution=RESOLUTION, lock=lock, base=BASE, runtime={}, epoch=1).glibc == glibc


def test_too_old_base_is_refused_before_the_build(lab: Lab) -> None:
    python = replace(PYTHON, depends=("__glibc >=2.99",))
    lock = replace(LOCK, packages=(python,))
    with pytest.raises(
        InvalidSpec, match=r"has glibc 2\.36, but the environment was locked for 2\.99 or newer"
    ):
        build_image(
            Recipe(resolution=RESOLUTION, lock=lock, base=BASE, runtime=RUNTIME),
            layout=lab.root / "images" / "toy",
            install=lab.install({}),
            byte_code=None,
            progress=lab.progress,
        )
    assert lab.installed == 0


def test_corrupt_layer_is_reported_and_rebuilt(lab: Lab) -> None:
    image = lab.build("toy", FIRST)
    torch = next(layer for layer in image.layers if layer.group == "torch")
    flip(oci_layout.blob(image.layout, torch.digest))
    again = lab.build("toy", FIRST)
    assert again == image
    assert lab.progress.warned == [
        f"the layer {torch.digest[:19]} in {image.layout} is corrupt: it does not match its digest and is made again"
    ]
    assert (
        hashlib.sha256(oci_layout.blob(image.layout, torch.digest).read_bytes()).hexdigest()
        == torch.digest[7:]
    )
    assert 2_000_000 < lab.progress.written < 2_010_000


def test_a_corrupt_layer_with_its_old_mtime_is_not_compressed(lab: Lab) -> None:
    """Neither here nor where another environment shares the file."""
    built, other = lab.build("toy", FIRST), lab.build("other", CHANGED)
    torch = next(layer for layer in built.layers if layer.group == "torch")
    flip(oci_layout.blob(built.layout, torch.digest), unseen=True)
    with pytest.raises(IntegrityError, match=f"{torch.digest[7:]} is corrupt"):
        compress.compress_image(built, "zstd", lab.root / "packed", lab.progress)
    for name, versions, before in (("toy", FIRST, built), ("other", CHANGED, other)):
        assert lab.build(name, versions) == before
        content = oci_layout.blob(before.layout, torch.digest).read_bytes()
        assert hashlib.sha256(content).hexdigest() == torch.digest[7:]


def test_a_layout_is_checked_before_it_is_linked(lab: Lab) -> None:
    image = lab.build("toy", FIRST)
    flip(oci_layout.blob(image.layout, image.layers[1].digest))
    with pytest.raises(IntegrityError, match="is corrupt"):
        export.export_image(image, lab.root / "out")
    assert not (lab.root / "out").exists()


def test_a_copied_layout_is_hashed_once(lab: Lab) -> None:
    image = lab.build("toy", FIRST)
    shutil.copytree(image.layout, lab.root / "copied")
    shutil.rmtree(image.layout)
    shutil.copytree(lab.root / "copied", image.layout)  # other numbers and times
    assert not all(row.is_unchanged for row in layer_cache.read(image.layout))
    assert lab.build("toy", FIRST) == image
    assert lab.progress.written == 0
    assert all(row.is_unchanged for row in layer_cache.read(image.layout))


@pytest.mark.parametrize(
    "text", ["", "[]", "null", '{"sha256:0": 1}', '{"sha256:0": {"cache_key": 1, "stat": [1]}}']
)
def test_an_invalid_layers_json_is_ignored(lab: Lab, text: str) -> None:
    image = lab.build("toy", FIRST)
    (image.layout / layer_cache.FILE).write_text(text)
    assert lab.build("toy", FIRST) == image
    (image.layout / layer_cache.FILE).write_text(text)
    assert lab.build("toy", CHANGED).layers[:5] == image.layers[:5]


def test_checking_one_layer_keeps_the_records_of_others(lab: Lab) -> None:
    """At one that was damaged, or is said to be by an engine or a registry."""
    image = lab.build("toy", FIRST)
    before = {row.digest: row.key for row in layer_cache.read(image.layout)}
    layer_digest = image.layers[2].digest
    assert layer_cache.quarantine_corrupt(image.layout, [layer_digest], thorough=True) == []
    assert {row.digest: row.key for row in layer_cache.read(image.layout)} == before
    flip(oci_layout.blob(image.layout, layer_digest), unseen=True)
    assert layer_cache.quarantine_corrupt(image.layout, [layer_digest], thorough=True) == [
        layer_digest
    ]
    assert {row.digest: row.key for row in layer_cache.read(image.layout)} == {
        key: of for key, of in before.items() if key != layer_digest
    }


def test_a_locale_without_utf_8_is_refused(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "iso8859-1")
    with pytest.raises(InvalidSpec, match="is iso8859-1, but images need UTF-8"):
        lab.build("toy", FIRST)


def test_a_changed_layer_is_not_reused_for_another_image(lab: Lab) -> None:
    image = lab.build("toy", FIRST)
    flip(oci_layout.blob(image.layout, image.layers[1].digest))
    second = lab.build("toy", CHANGED)
    assert second.layers[:5] == image.layers[:5]
    assert (
        hashlib.sha256(
            oci_layout.blob(second.layout, image.layers[1].digest).read_bytes()
        ).hexdigest()
        == image.layers[1].digest[7:]
    )


def test_layers_json_is_not_part_of_the_image(lab: Lab) -> None:
    image = lab.build("toy", FIRST)
    assert json.loads((image.layout / layer_cache.FILE).read_text())
    export.export_image(image, lab.root / "out")
    assert sorted(path.name for path in (lab.root / "out").iterdir()) == [
        "blobs",
        "index.json",
        "oci-layout",
    ]


@pytest.mark.parametrize("cores", [1, 3])
def test_the_number_of_cores_does_not_change_the_image(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    monkeypatch.setattr(layer_build, "usable_cpus", lambda: cores)
    digest = lab.build("toy", FIRST).manifest_digest
    assert digest == Lab(lab.root / "elsewhere").build("toy", FIRST).manifest_digest


def test_conda_cuda_packages_have_their_own_layer(tmp_path: Path) -> None:
    """With its records; and a Python that changes leaves it alone."""
    cudnn = replace(
        PYTHON, name="cudnn", version="9.1", url="https://example.org/c/linux-64/cudnn-9.1-0.conda"
    )

    def install_conda(version: str) -> Callable[[Path], None]:
        def installing(staging: Path) -> None:
            (staging / "conda-meta").mkdir(parents=True)
            for name, path, text in (
                ("python", "bin/python", version),
                ("cudnn", "lib/libcudnn.so", "cudnn"),
            ):
                (staging / path).parent.mkdir()
                (staging / path).write_text(text)
                row = {
                    "_path": path,
                    "path_type": "hardlink",
                    "sha256": hashlib.sha256(text.encode()).hexdigest(),
                }
                record = {"name": name, "paths_data": {"paths": [row]}}
                (staging / "conda-meta" / f"{name}.json").write_text(json.dumps(record))

        return installing

    def build(version: str) -> Image:
        lock = replace(LOCK, packages=(replace(PYTHON, version=version), cudnn), sha256=version)
        return build_image(
            Recipe(resolution=RESOLUTION, lock=lock, base=BASE, runtime=RUNTIME),
            layout=tmp_path / "images" / "toy",
            install=install_conda(version),
            byte_code=None,
            progress=Quiet(),
        )

    first, second = build("3.11.7"), build("3.11.8")
    assert [layer.group for layer in second.layers] == ["base", "cuda", "python", "provision"]
    assert [before == other for before, other in zip(first.layers, second.layers, strict=True)] == [
        True,
        True,
        False,
        True,
    ]
    with tarfile.open(oci_layout.blob(second.layout, second.layers[1].digest)) as layer:
        files = [member.name for member in layer if member.isreg()]
    assert files == ["opt/env/conda-meta/cudnn.json", "opt/env/lib/libcudnn.so"]
