"""A lock holds one torch."""

from __future__ import annotations

import pytest

from provision import resolver
from provision.core.errors import Unsolvable
from provision.core.types import LockedPackage
from provision.lockfile.cuda_guard import refuse_second_torch
from provision.resolver import spec as specs


def locked(name: str, *depends: str) -> LockedPackage:
    return LockedPackage(
        name=name,
        version="1",
        manager="conda",
        platform="linux-64",
        url=f"https://c.example/{name}-1-0.conda",
        sha256="0" * 64,
        depends=depends,
    )


@pytest.mark.parametrize("source,refused", [("wheels", True), ("pytorch", False)])
def test_second_torch_is_refused_with_the_package_that_brings_it(
    source: str, refused: bool
) -> None:
    options = {"torch": "2.3.1", "cuda": "12.1", "source": source, "conda": ["open3d", "ffmpeg"]}
    resolution = resolver.resolve(specs.combine({}, options, name="x"))
    packages = [
        locked("open3d", "nodes >=1"),
        locked("nodes", "pytorch >=2"),
        locked("ffmpeg"),
        locked("pytorch", "ffmpeg"),
    ]
    refuse_second_torch([package for package in packages if package.name != "pytorch"], resolution)
    if not refused:
        refuse_second_torch(packages, resolution)
        return
    with pytest.raises(Unsolvable, match="conda's open3d needs") as refusal:
        refuse_second_torch(packages, resolution)
    assert "`--pip open3d`" in refusal.value.advice
