"""The data against real conda records: every CUDA build of PyTorch that a channel was seen to have is in the table, as it is there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from provision import catalog, sources
from provision.catalog import Build
from provision.core.platforms import PLATFORMS, Platform
from provision.core.types import BuildSource
from tests.conftest import SHARED_RECORDS

pytestmark = pytest.mark.conda
CHANNELS: tuple[BuildSource, ...] = ("pytorch", "conda-forge")


def records(channel: str, platform: Platform) -> Iterator[dict[str, object]]:
    """CUDA builds of the table's releases."""
    path = SHARED_RECORDS / channel / platform / "repodata.json"
    content = json.loads(path.read_text())
    for record in [
        *content.get("packages", {}).values(),
        *content.get("packages.conda", {}).values(),
    ]:
        if (
            record["name"] == "pytorch"
            and "cuda" in record["build"]
            and catalog.version_key(record["version"]) >= (1, 12)
        ):
            yield record


def of(record: dict[str, object], source: BuildSource) -> tuple[Build | None, str]:
    """The build in the table that a record is of, and the record's Python."""
    build = str(record["build"])
    numbers = re.search(r"cuda([\d.]+)", build)
    python = re.search(r"py3\.?(\d+)", build)
    assert numbers and python
    cuda = numbers[1] if source == "pytorch" else f"{numbers[1][:2]}.{numbers[1][2:]}"
    release = catalog.releases().get(str(record["version"]))
    return next(
        (item for item in sources.by_name(source).builds(release) if item.cuda == cuda), None
    ) if release else None, f"3.{python[1]}"


def floor(record: dict[str, object], name: str) -> str | None:
    """2.27.7 of `nccl >=2.27.7.1,<3.0a0`."""
    depends = record["depends"]
    assert isinstance(depends, list)
    result = (re.match(rf"{name} >=([\d.]+)", dependency) for dependency in depends)
    return next(
        (".".join(dependency[1].rstrip(".").split(".")[:3]) for dependency in result if dependency),
        None,
    )


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("source", CHANNELS)
def test_table_has_every_record(source: BuildSource, platform: Platform) -> None:
    compared = 0
    for record in records(source, platform):
        name = f"{record['version']} {record['build']}"
        build, python = of(record, source)
        assert build, f"{name} is not in the table"
        assert platform in build.platforms, name
        platform_build = build.for_platform(platform)
        assert python in (platform_build.python or platform_build.python_seen), name
        if nccl := floor(record, "nccl"):
            assert platform_build.nccl_floor and catalog.version_key(
                platform_build.nccl_floor
            ) <= catalog.version_key(nccl), name
        if glibc := floor(record, "__glibc"):
            assert platform_build.glibc and catalog.version_key(
                platform_build.glibc
            ) <= catalog.version_key(glibc), name
        compared += 1
    assert compared or (source, platform) == ("pytorch", "linux-aarch64")
