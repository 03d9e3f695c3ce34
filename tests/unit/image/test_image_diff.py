"""Sizes of an image's packages, how two images differ, and second copies of CUDA."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from provision.adapters.zstd import zstd
from provision.cli.main import cli
from provision.core.types import LockedPackage, Manager
from provision.image.cuda_copies import base_cuda, cuda_copies
from provision.image.package_sizes import compare, package_sizes
from tests.unit.image.test_image_layers import archive

SITE = "opt/env/lib/python3.11/site-packages"


def layers(folder: Path, version: str, size: int) -> list[Path]:
    """A base, and an environment with one conda package and one wheel, whose byte code no record lists;
    one layer of each compression."""
    folder.mkdir()
    record = {"name": "libfoo", "version": "1.0", "files": ["lib/libfoo.so"]}
    dist_info = f"einops-{version}.dist-info"
    rows = "einops/__init__.py,sha256=x,3\n../../../bin/tool,,\n" + f"{dist_info}/RECORD,,\n"
    contents = [
        archive(("etc/motd", b"hello")),
        gzip.compress(
            archive(
                ("opt/env/conda-meta/libfoo-1.0-0.json", json.dumps(record).encode()),
                ("opt/env/lib/libfoo.so", b"x" * 100),
            )
        ),
        zstd.compress(
            archive(
                (f"{SITE}/einops/__init__.py", b"x" * size),
                (f"{SITE}/einops/__pycache__/__init__.cpython-311.pyc", b"x" * 7),
                ("opt/env/bin/tool", b"x" * 20),
                (f"{SITE}/{dist_info}/RECORD", rows.encode()),
                ("workspace/train.py", b"code"),
            )
        ),
    ]
    paths = []
    for index, content in enumerate(contents):
        paths.append(folder / str(index))
        paths[-1].write_bytes(content)
    return paths


def test_a_package_has_the_size_of_its_files(tmp_path: Path) -> None:
    before = package_sizes(layers(tmp_path / "a", "0.7.0", 3))
    sizes = {package.name: size for package, size in before.items()}
    assert sizes["base image"] == 5
    assert sizes["workspace's other files"] == 4
    assert sizes["einops"] == 3 + 7 + 20 + len(_record("0.7.0"))
    after = package_sizes(layers(tmp_path / "b", "0.8.0", 13))
    (change,) = compare(before, after)
    assert (change.name, change.before, change.after, change.growth) == (
        "einops",
        "0.7.0",
        "0.8.0",
        10,
    )


def _record(version: str) -> str:
    return (
        f"einops/__init__.py,sha256=x,3\n../../../bin/tool,,\neinops-{version}.dist-info/RECORD,,\n"
    )


@pytest.mark.parametrize(
    "name,message",
    [
        ("registry.lab:5000/torch:1", "skopeo copy docker://registry.lab:5000/torch:1 oci:DIR"),
        ("oci:nowhere", "nowhere"),
    ],
)
def test_an_image_that_is_not_here(name: str, message: str) -> None:
    result = CliRunner().invoke(cli, ["image", "diff", name, name])
    assert result.exit_code != 0
    assert message in result.stderr


def package(manager: Manager, name: str, *depends: str) -> LockedPackage:
    return LockedPackage(
        manager=manager, name=name, version="1", url=f"https://x.test/{name}", sha256="0", depends=depends
    )  # fmt: skip


WHEEL = [
    package("pip", "torch", "nvidia-cudnn-cu12 ==9.1", "nvidia-cublas-cu12 ==12.1"),
    package("pip", "nvidia-cudnn-cu12"),
    package("pip", "nvidia-cublas-cu12"),
]


@pytest.mark.parametrize(
    "more,extra",
    [
        ([], None),
        ([package("conda", "cuda-nvcc", "cuda-cudart"), package("conda", "cuda-cudart")], None),
        ([package("conda", "cudnn")], "cudnn (conda)"),
        ([package("conda", "cudatoolkit"), package("conda", "old", "cudatoolkit 11.*")], "cudatoolkit (conda)"),
        ([package("pip", "jax", "nvidia-cudnn-cu13>=9"), package("pip", "nvidia-cudnn-cu13")], "nvidia-cudnn-cu13 (pip)"),
    ],
)  # fmt: skip
def test_second_copies_are_named(more: list[LockedPackage], extra: str | None) -> None:
    text = cuda_copies([*WHEEL, *more])
    if extra is None:
        assert text is None
    else:
        name = extra.partition(" ")[0]
        assert text and f"and not {extra}. " in text and f"env tree NAME {name}`" in text


def test_condas_torch_keeps_condas_copy() -> None:
    conda = [package("conda", "pytorch", "libcublas >=12"), package("conda", "libcublas")]
    wheels = [package("pip", "vllm", "nvidia-cublas-cu12"), package("pip", "nvidia-cublas-cu12")]
    text = cuda_copies([*conda, *wheels])
    assert text and "torch uses libcublas (conda), and not nvidia-cublas-cu12 (pip)." in text
    assert cuda_copies([*conda, package("conda", "cuda-libcublas")]) is None


def test_a_base_with_cuda() -> None:
    assert base_cuda(["PATH=/bin", "CUDA_VERSION=12.1.1"]) == "12.1.1"
    assert base_cuda(["PATH=/bin"]) is None
