"""Which layer a package belongs to."""

from __future__ import annotations

import pytest

from provision.core.types import LockedPackage, Manager
from provision.image import layers


def package(name: str, manager: Manager = "pip", version: str = "1.0") -> LockedPackage:
    return LockedPackage(
        manager=manager,
        name=name,
        version=version,
        url=f"https://example.org/{name}",
        sha256="0" * 64,
    )


@pytest.mark.parametrize(
    ("manager", "name", "size", "group"),
    [
        ("conda", "python", 0, "python"),
        ("conda", "nvidia-something", 0, "python"),
        ("conda", "libcublas", 0, "cuda"),
        ("conda", "libcurl", 0, "python"),
        ("conda", "cuda-cudart_linux-64", 0, "cuda"),
        ("conda", "pytorch", 0, "torch"),
        ("conda", "libtorch", 0, "torch"),
        ("pip", "nvidia-nccl-cu12", 0, "cuda"),
        ("pip", "nvidia_cublas_cu12", 10**9, "cuda"),
        ("pip", "cuda-bindings", 0, "cuda"),
        ("pip", "torch", 10**9, "torch"),
        ("pip", "triton", 0, "torch"),
        ("pip", "torchvision", 6_999_999, "large"),
        ("pip", "numpy", layers.LARGE, "large"),
        ("pip", "numpy", layers.LARGE - 1, "rest"),
        ("pip", "Jinja2", 0, "rest"),
    ],
)
def test_group_by_the_table(manager: Manager, name: str, size: int, group: str) -> None:
    assert layers.group_of(package(name, manager), size) == group


def test_groups_come_in_the_order_of_the_table_and_empty_ones_not_at_all() -> None:
    packages = [
        package("einops"),
        package("python", "conda"),
        package("sympy"),
        package("torch"),
        package("cudnn", "conda"),
    ]
    found = layers.group_packages(packages, {"sympy": 27_000_000, "python": 10**9})
    named = {name: [package.name for package in members] for name, members in found.items()}
    assert named == {
        "cuda": ["cudnn"],
        "torch": ["torch"],
        "python": ["python"],
        "large": ["sympy"],
        "rest": ["einops"],
    }
