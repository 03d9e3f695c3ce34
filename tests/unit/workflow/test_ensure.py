"""What is looked at before an environment is made."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provision.core.errors import IntegrityError, Unreachable
from provision.core.paths import Folders
from provision.core.types import Pin, Prefix
from provision.environment import prefix as prefixes
from provision.environment.marker import Marker
from provision.environment.marker import write as write_marker
from provision.workflow import ensure
from provision.workflow.context import Context
from provision.workflow.image import image
from tests.progress import Recorder
from tests.unit.environment.test_prefix import lock

PINS = (Pin(manager="pip", requirement="torch==2.3.1", reason="", source=""),)


class Installing(Exception):
    """The packages would be installed now."""


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    def install(*_: object, **__: object) -> None:
        raise Installing

    monkeypatch.setattr(prefixes, "create", install)
    folders = Folders(data=tmp_path / "data", cache=tmp_path / "cache", envs=tmp_path / "envs")
    return Context(folders=folders, progress=Recorder())


def plan(path: Path, pins: tuple[Pin, ...] = ()) -> Any:
    """The plan of a prefix that is not of its lock any more."""
    return SimpleNamespace(
        name="lab",
        folder=path.parent / "envs" / "lab",
        prefix_path=path,
        reusable_prefix=lambda lock: None,
        pins=pins,
        resolution=SimpleNamespace(warnings=()),
    )


def test_nothing_is_made_from_a_lock_without_what_was_requested(
    context: Context, tmp_path: Path
) -> None:
    empty = replace(lock(), packages=())
    with pytest.raises(IntegrityError, match=r"has no torch, which the request needs"):
        ensure.ensure_prefix(context, plan(tmp_path / "lab", PINS), empty)


def test_what_was_installed_by_hand_is_named_before_it_goes(
    context: Context, tmp_path: Path
) -> None:
    path = tmp_path / "lab"
    site = path / "lib" / "python3.11" / "site-packages"
    (site / "einops-0.8.2.dist-info").mkdir(parents=True)
    write_marker(
        path, Marker(name="lab", folder="x", lock_sha256="1", records=("torch-2.dist-info",))
    )
    with pytest.raises(Installing):
        ensure.ensure_prefix(context, plan(path), replace(lock(), packages=()))
    assert isinstance(context.progress, Recorder)
    assert context.progress.warnings == [
        f"{path} is made again without what was installed there by hand: einops 0.8.2. "
        "`provision add lab PACKAGE` makes a package part of it"
    ]


def test_no_image_is_made_of_a_lock_without_what_was_requested(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its labels would name a torch that it does not hold."""
    monkeypatch.setattr(image, "_find_base", lambda *_: "a base")
    monkeypatch.setattr(image, "image_code", lambda *_: None)
    monkeypatch.setattr(image, "_recipe", lambda *_: "a recipe")
    monkeypatch.setattr(image, "find_image", lambda *_, **__: None)
    prefix = Prefix(name="lab", path=tmp_path / "lab", lock_sha256="1")
    with pytest.raises(IntegrityError, match=r"has no torch, which the request needs"):
        image.ensure_image(
            context, plan(tmp_path / "lab", PINS), replace(lock(), packages=()), prefix, None
        )


@pytest.mark.parametrize(
    "conda,silent,message",
    [
        (("python=3.11", "pip"), {"conda-forge": "no route"}, ""),
        (("python=3.11", "pip", "ffmpeg>=5"), {"conda-forge": "no route"},
         r"^ffmpeg .* no conda channel answers \(conda-forge: no route\)"),
        (("pip", "rdma-core"), {}, r"^rdma-core .*--relock --python-from channel"),
    ],
)  # fmt: skip
def test_conda_packages_need_a_channel(
    context: Context,
    monkeypatch: pytest.MonkeyPatch,
    conda: tuple[str, ...],
    silent: dict[str, str],
    message: str,
) -> None:
    monkeypatch.setattr(ensure, "unanswered_channels", lambda *_: silent)
    resolution = SimpleNamespace(channels=("conda-forge",), platforms=("linux-64",))
    plan: Any = SimpleNamespace(
        name="lab", inputs=SimpleNamespace(conda=conda), resolution=resolution
    )
    if not message:
        ensure.require_no_conda_packages(context, plan)
        return
    with pytest.raises(Unreachable) as caught:
        ensure.require_no_conda_packages(context, plan)
    assert re.search(message, str(caught.value))
