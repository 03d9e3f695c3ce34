"""Which files change places when wheels of a prefix change. Kills are in workflow/test_change_journal.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from provision.adapters import uv
from provision.adapters.installed_files import record_hash
from provision.core import disk_usage
from provision.core.atomic import staging_path
from provision.core.mirrors import NO_MIRRORS
from provision.core.paths import Folders
from provision.core.types import Prefix
from provision.environment import bytecode, drift, install_record, marker, prefix_change
from provision.environment import prefix as prefixes
from tests.progress import Recorder
from tests.unit.environment.test_prefix import lock, make

SITE = "lib/python3.11/site-packages"
TAG = sys.implementation.cache_tag
BEFORE = (("six", "1.17.0"), ("gone", "1"))


def add_wheel(tree: Path, name: str, *files: str, text: str = "") -> None:
    rows = f"{name}-1.dist-info/RECORD,,\n"
    for file in files:
        path = (tree / SITE / file).resolve()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text or f"# {name}\n")
        rows += f"{file},{record_hash(path.read_bytes())},{path.stat().st_size}\n"
    record = tree / SITE / f"{name}-1.dist-info" / "RECORD"
    record.parent.mkdir(parents=True)
    record.write_text(rows)


@pytest.fixture
def environment(tmp_path: Path) -> Prefix:
    """With a wheel `gone` that shares folders with others."""
    path = make(tmp_path / "lab").path
    (path / "bin" / "python").unlink()
    (path / "bin" / "python").symlink_to(sys.executable)
    add_wheel(path, "gone", "gone.py", "gone/m.py", "../../../bin/gone", "shared/gone.py")
    (path / SITE / "shared" / "mine.txt").write_text("")
    bytecode.compile_all(path, "checked-hash")
    install_record.write(path)
    described = marker.read(path)
    assert described is not None
    marker.write(path, described)  # now complete
    found = prefixes.find("lab", path)
    assert found is not None
    return found


def prepare(
    environment: Prefix, monkeypatch: pytest.MonkeyPatch, *files: str, text: str = ""
) -> prefix_change.WheelChange | None:
    """From `gone` to `new`, which uv would unpack."""

    def install(*_: object, target: Path, **__: Any) -> None:
        add_wheel(target, "new", *files, text=text)

    monkeypatch.setattr(uv, "install_wheels", install)
    after = lock(("six", "1.17.0"), ("new", "1"), sha="after")
    return prefix_change.prepare(
        environment,
        lock(*BEFORE),
        after,
        environment.path.parent / "cache",
        Recorder(),
        NO_MIRRORS,
    )


def test_only_files_of_changed_wheels_change_places(
    environment: Prefix, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ("new.py", "gone/other.py", "shared/new.py")
    change = prepare(environment, monkeypatch, *files)
    assert change is not None
    pycache = f"{SITE}/__pycache__"
    assert set(change.outgoing) == {
        "bin/gone",
        f"{SITE}/gone",
        f"{SITE}/gone-1.dist-info",
        f"{SITE}/gone.py",
        f"{pycache}/gone.{TAG}.pyc",
        f"{SITE}/shared/__pycache__",
        f"{SITE}/shared/gone.py",
    }
    assert set(change.incoming) == {
        f"{SITE}/gone",
        f"{SITE}/new-1.dist-info",
        f"{SITE}/new.py",
        f"{pycache}/new.{TAG}.pyc",
        f"{SITE}/shared/__pycache__",
        f"{SITE}/shared/new.py",
    }
    staging = staging_path(environment.path)
    change.write_record(staging)
    new = marker.Marker(name="lab", folder="x", lock_sha256="after")
    marker.write(staging, new)
    prefix_change.exchange(change)
    changed = prefixes.find("lab", environment.path)
    assert changed is not None
    after = lock(("six", "1.17.0"), ("new", "1"), sha="after")
    differences = drift.find_drift(changed, after, files=True)
    assert {difference.name for difference in differences} == {"python"}  # it is a link here
    assert not list(staging.rglob("*.py"))
    written = install_record.read(environment.path)
    assert written is not None and written.byte_code == {
        path: sha256
        for path, sha256 in bytecode.compiled_files(environment.path).items()
        if install_record.RUNTIME_FOLDER not in path
    }


@pytest.mark.parametrize("file", ["six.py", "shared/mine.txt"])
def test_a_file_that_is_there_already_is_not_replaced(
    environment: Prefix, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """Of another wheel, or somebody's, with another content: the whole prefix is made anew."""
    assert prepare(environment, monkeypatch, file) is None
    assert not staging_path(environment.path).exists()


def test_a_file_of_a_wheel_that_stays_does_not_leave(
    environment: Prefix, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`six` has a file of `gone`, too."""
    record = environment.path / SITE / "six-1.17.0.dist-info" / "RECORD"
    record.write_text(record.read_text() + "shared/gone.py,,\n")
    assert prepare(environment, monkeypatch, "new.py") is None


def test_the_size_is_of_what_leaves(environment: Prefix, monkeypatch: pytest.MonkeyPatch) -> None:
    change = prepare(environment, monkeypatch, "new.py")
    assert change is not None
    measured = [disk_usage.measure(environment.path / path).size for path in change.outgoing]
    assert change.size == sum(measured) > 0


def test_ctrl_c_in_the_midst_of_the_exchange_undoes_it(
    environment: Prefix, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(change: prefix_change.WheelChange) -> None:
        exchange(change)
        raise KeyboardInterrupt

    exchange = prefix_change.exchange
    monkeypatch.setattr(prefix_change, "exchange", interrupted)
    monkeypatch.setattr(uv, "install_wheels", lambda *_, target, **__: add_wheel(target, "new"))
    folders = Folders(data=tmp_path / "data", cache=tmp_path / "cache", envs=tmp_path / "envs")
    before = sorted(environment.path.rglob("*"))
    with pytest.raises(KeyboardInterrupt):
        prefixes.create(
            lock(("six", "1.17.0"), ("new", "1"), sha="after"),
            "lab",
            tmp_path,
            environment.path,
            folders,
            Recorder(),
            before=lock(*BEFORE),
            keep_replaced=True,
        )
    assert sorted(environment.path.rglob("*")) == before
    assert prefixes.find("lab", environment.path) == environment
