"""Whatever a user's umask is, nobody else may write to what provision makes, not even while it is
being made: a link or a file that somebody put there meanwhile would stay."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provision import channel
from provision.cluster import pack as packs
from provision.core.atomic import atomic_write
from provision.core.paths import Folders, make_private_directory, owner_writes_only
from provision.environment import kernel as kernels
from provision.environment import prefix as prefixes
from provision.environment import runtime_package
from provision.verbs.pack import pack
from provision.workflow import ensure
from provision.workflow.context import Context
from tests.progress import Recorder
from tests.unit.environment.test_prefix import lock


class Reached(Exception):
    """The work that the test looks at would begin now."""


@pytest.fixture(autouse=True)
def careless_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    folders = Folders(data=tmp_path / "data", cache=tmp_path / "cache", envs=tmp_path / "envs")
    return Context(folders=folders, progress=Recorder())


def umask_now() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def test_a_stricter_umask_stays() -> None:
    os.umask(0o077)
    with owner_writes_only():
        assert umask_now() == 0o077
    assert umask_now() == 0o077


def test_a_thread_that_ends_does_not_uncover_the_others() -> None:
    is_open, may_end = threading.Event(), threading.Event()

    def work() -> None:
        with owner_writes_only():
            is_open.set()
            may_end.wait()

    thread = threading.Thread(target=work)
    thread.start()
    is_open.wait()
    with owner_writes_only():
        may_end.set()
        thread.join()
        assert umask_now() == 0o022
    assert umask_now() == 0


@pytest.mark.parametrize(
    ("module", "name", "call"),
    [
        (
            prefixes,
            "create",
            lambda context, plan: ensure.ensure_prefix(context, plan, replace(lock(), packages=())),
        ),
        (
            channel,
            "bootstrap",
            lambda context, plan: ensure.ensure_host_channel(context, context.folders.channels),
        ),
        (
            runtime_package,
            "is_current",
            lambda context, plan: ensure.ensure_runtime(context, plan),
        ),
        (kernels, "is_current", lambda context, plan: ensure.ensure_kernel(plan, "lab")),
        (
            packs,
            "pack_path",
            lambda context, plan: pack._make(context, plan, lock(), plan),
        ),
    ],
)
def test_work_is_protected_from_its_first_moment(
    context: Context,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    name: str,
    call: Callable[[Context, Any], object],
) -> None:
    umasks = []

    def reached(*_: object, **__: object) -> None:
        umasks.append(umask_now())
        raise Reached

    monkeypatch.setattr(module, name, reached)
    plan = SimpleNamespace(
        name="lab",
        path=tmp_path / "lab",
        folder=tmp_path / "envs" / "lab",
        prefix_path=tmp_path / "lab",
        reusable_prefix=lambda lock: None,
        pins=(),
        resolution=SimpleNamespace(warnings=()),
    )
    with pytest.raises(Reached):
        call(context, plan)
    assert [oct(umask) for umask in umasks] == ["0o22"]
    assert umask_now() == 0


def test_new_folders(tmp_path: Path) -> None:
    make_private_directory(tmp_path / "data" / "prefixes")
    atomic_write(tmp_path / "envs" / "lab" / "spec.yml", "torch: '2.3'\n")
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert modes == {
        "data": 0o755,
        "prefixes": 0o755,
        "envs": 0o775,
        "lab": 0o775,
        "spec.yml": 0o644,
    }
