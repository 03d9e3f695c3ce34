"""The facts: complete, sourced, and consistent with each other."""

from __future__ import annotations

import pytest
from packaging.specifiers import SpecifierSet

from provision import compat
from provision.pipeline.matrix import SOURCES


def test_covers_1_12_to_2_15_in_order() -> None:
    versions = list(compat.releases())
    assert versions[0] == "1.12.0"
    assert versions[-1] == "2.15.0"
    assert versions == sorted(versions, key=compat.version_key)


@pytest.mark.parametrize("release", compat.releases().values(), ids=lambda release: release.version)
def test_every_build_has_its_source_and_a_known_driver_floor(release: compat.Release) -> None:
    assert release.wheels
    for source in SOURCES:
        for build in release.builds(source):
            assert build.source and build.python and build.glibc
            assert build.cuda in compat.driver_floors(), f"{release.version} {build.cuda}"
            assert build.nccl is None or build.nccl_source


@pytest.mark.parametrize("release", compat.releases().values(), ids=lambda release: release.version)
def test_exactly_one_wheel_is_the_index_default(release: compat.Release) -> None:
    assert sum(build.on_pypi for build in release.wheels) == 1


def test_rules_are_sourced_and_parse() -> None:
    for rule in compat.rules():
        assert rule.reason and rule.source and rule.sources
        SpecifierSet(rule.torch)


def test_version_key_orders_numerically() -> None:
    assert compat.version_key("2.10") > compat.version_key("2.9")


def test_torchaudio_ends_with_2_11() -> None:
    audio = {version: release.companion_audio for version, release in compat.releases().items()}
    assert audio["2.3.1"] == "2.3.1"
    assert audio["1.13.1"] == "0.13.1"
    assert audio["2.11.0"] == "2.11.0"
    assert audio["2.12.0"] is None
