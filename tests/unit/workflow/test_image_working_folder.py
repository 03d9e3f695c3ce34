"""The folder in which a container saves, and as whom."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provision import launch
from provision.core.errors import InvalidSpec
from provision.workflow.image.image import _in_folder

CALLER = "1234:100"


@pytest.fixture(autouse=True)
def user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may be root."""
    monkeypatch.setattr(os, "getuid", lambda: 1234)
    monkeypatch.setattr(os, "getgid", lambda: 100)


def engine(*security: str, url: str = "http+docker://localhost") -> Any:
    """What an engine answers to `docker info`."""
    api = SimpleNamespace(base_url=url)
    return SimpleNamespace(api=api, info=lambda: {"SecurityOptions": list(security)})


def flags(client: Any, **options: Any) -> list[str]:
    chosen = _in_folder(client, launch.RunOptions(**options), Path("/home/ann/a b"))
    return [*map(str, chosen.mounts), str(chosen.user)]


def test_the_current_folder_is_mounted_and_files_are_the_callers() -> None:
    assert flags(engine("name=seccomp,profile=default")) == ["/home/ann/a b:/workspace", CALLER]


def test_a_rootless_engine_maps_its_root_to_the_caller() -> None:
    assert flags(engine("name=rootless", "name=cgroupns"))[-1] == "0:0"


def test_what_the_user_chose_stays() -> None:
    mounts = (launch.parse_mount("/data:/workspace/"), launch.parse_mount("/x:/y"))
    assert flags(engine(), mounts=mounts, user="5:6") == ["/data:/workspace/", "/x:/y", "5:6"]
    assert flags(engine(), mounts=mounts[1:]) == ["/home/ann/a b:/workspace", "/x:/y", CALLER]


@pytest.mark.parametrize("url", ["http://10.0.0.7:2375", "http+docker://ssh", "https://10.0.0.7"])
def test_an_engine_elsewhere_cannot_save_here(url: str) -> None:
    with pytest.raises(InvalidSpec, match="another machine"):
        flags(engine(url=url))
    volume = (launch.parse_mount("notebooks:/workspace"),)
    assert flags(engine(url=url), mounts=volume) == ["notebooks:/workspace", CALLER]
