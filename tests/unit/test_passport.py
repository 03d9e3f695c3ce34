"""How a passport reports pins and the versions chosen for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.core.types import Lock, LockedPackage, Manager, Pin
from provision.environment import passport


def package(manager: Manager, name: str, version: str) -> LockedPackage:
    return LockedPackage(
        manager=manager, name=name, version=version, url="file:///x", sha256="0" * 64
    )


LOCK = Lock(
    path=Path("conda-lock.yml"),
    sha256="0" * 64,
    content_hash="0" * 64,
    inputs_sha256="0" * 64,
    packages=(
        package("conda", "pytorch", "2.3.1"),
        package("conda", "numpy", "1.26.4"),
        package("pip", "nvidia-nccl-cu12", "2.20.5"),
    ),
    python_from="channel",
    portable=True,
)


@pytest.mark.parametrize("requirement, version", [
    ("pytorch::pytorch=2.3.1=py3.11_cuda12.1*", "2.3.1"),
    ("numpy", "1.26.4"),
    ("numpy<2", "1.26.4"),
    ("nvidia_nccl.cu12==2.20.5", "2.20.5"),
    ("Numpy[extra]~=1.0", "1.26.4"),
    ("setuptools<82", None),
    ("pytorch-cuda=12.1", None),
])  # fmt: skip
def test_version_chosen_for_a_pin(requirement: str, version: str | None) -> None:
    assert (
        passport.locked_version(
            Pin(manager="conda", requirement=requirement, reason="", source=""), LOCK
        )
        == version
    )
