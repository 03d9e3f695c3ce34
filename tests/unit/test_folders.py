"""Folders and who holds a name: real processes, real locks."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from provision.core import atomic, file_locks, paths, prefix_registry
from provision.core.errors import InUse, SystemRefused
from provision.core.file_locks import environment_lock
from provision.core.paths import Folders
from provision.core.types import MeterContext
from provision.image import oci_layout

HOLD = """
import sys
from pathlib import Path
from provision.core.file_locks import environment_lock
from provision.core.paths import Folders
class Quiet:
    def say(self, text): print(text, flush=True)
where = Folders(data=Path(sys.argv[1]), cache=Path(sys.argv[1]), envs=Path(sys.argv[1]))
with environment_lock(where, "lab", Quiet()):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def where(tmp_path: Path) -> Folders:
    return Folders(data=tmp_path, cache=tmp_path, envs=tmp_path)


class Listener:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def say(self, text: str) -> None:
        self.heard.append(text)

    warn = say

    def meter(self, title: str, total: int) -> MeterContext:
        raise AssertionError("nothing to measure")


def holder(where: Folders) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLD, str(where.data)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout and child.stdout.readline() == "held\n"
    return child


def test_a_held_name_is_refused_and_the_holder_named(where: Folders) -> None:
    with holder(where) as child:
        try:
            with (
                pytest.raises(InUse, match=f"lab is in use by process {child.pid} "),
                file_locks.environment_lock(where, "lab", Listener(), wait=False),
            ):
                pass
            with file_locks.environment_lock(where, "other", Listener(), wait=False):
                pass
        finally:
            child.kill()


def test_waits_for_the_holder_and_says_so(where: Folders) -> None:
    listener = Listener()
    with holder(where) as child:
        os.set_blocking(child.stdin.fileno(), True)  # type: ignore[union-attr]
        timer = subprocess.Popen(["sh", "-c", f"sleep 0.5; kill -9 {child.pid}"])
        with file_locks.environment_lock(where, "lab", listener):
            pass
        timer.wait()
    assert listener.heard and f"process {child.pid}" in listener.heard[0]


def test_holding_again_writes_nothing(where: Folders) -> None:
    with file_locks.environment_lock(where, "lab", Listener()):
        pass
    before = {path: path.stat().st_mtime_ns for path in where.data.rglob("*")}
    with file_locks.environment_lock(where, "lab", Listener()):
        pass
    assert {path: path.stat().st_mtime_ns for path in where.data.rglob("*")} == before


def test_prefixes_elsewhere_are_remembered_and_forgotten(where: Folders, tmp_path: Path) -> None:
    (where.prefixes / "usual").mkdir(parents=True)
    first, second = tmp_path / "scratch" / "lab", tmp_path / "other" / "lab"
    prefix_registry.record_prefix(where, "usual", where.prefixes / "usual")
    prefix_registry.record_prefix(where, "lab", first)
    prefix_registry.record_prefix(where, "lab", second)
    assert prefix_registry.prefix_path(where, "lab") == second
    assert prefix_registry.prefix_paths(where, "lab") == [where.prefixes / "lab", first, second]
    assert set(prefix_registry.list_prefixes(where)) == {"usual", "lab"}
    prefix_registry.forget_prefix(where, "lab")
    assert prefix_registry.prefix_path(where, "lab") == where.prefixes / "lab"


@pytest.mark.parametrize("content", ["", "[]", '{"lab": 3}', '{"lab": [3]}', "{"])
def test_a_damaged_list_of_places_counts_as_empty(where: Folders, content: str) -> None:
    (where.data / "elsewhere.json").write_text(content)
    assert prefix_registry.prefix_path(where, "lab") == where.prefixes / "lab"


def test_sweep_removes_only_what_a_killed_build_left(tmp_path: Path) -> None:
    final = tmp_path / "lab"
    atomic.staging_path(final).mkdir()
    atomic.backup_path(final).mkdir()
    atomic.staging_path(tmp_path / "other").mkdir()
    (tmp_path / ".lab.old").mkdir()  # somebody's own
    atomic.remove_leftovers(final)
    assert {path.name for path in tmp_path.iterdir()} == {
        atomic.staging_path(tmp_path / "other").name,
        ".lab.old",
    }


def test_variables_move_the_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PROVISION_DATA", str(tmp_path / "d"))
    monkeypatch.setenv("PROVISION_ENVS", str(tmp_path / "e"))
    found = paths.default_folders()
    assert (found.data, found.envs) == (tmp_path / "d", tmp_path / "e")
    assert paths.default_folders(tmp_path / "f").envs == tmp_path / "f"


def test_what_comes_again_is_swept_again(tmp_path: Path) -> None:
    """A writer that outlives the interrupt: it makes the folder anew, three times."""
    building = atomic.staging_path(tmp_path / "lab")
    again = threading.Event()

    def write() -> None:
        for _ in range(3):
            building.mkdir()  # one folder: between two the sweep would rightly come
            while building.exists():
                time.sleep(0.01)
        again.set()

    writer = threading.Thread(target=write)
    writer.start()
    atomic.remove_leftovers_until_quiet(tmp_path / "lab", quiet_s=0.3, timeout_s=30)
    writer.join(30)
    assert again.is_set()
    assert not building.exists()


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with pytest.raises(UnicodeEncodeError):
        atomic.atomic_write(tmp_path / "a", "\udc80")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def test_locks_are_taken_as_nfs_gives_them(
    where: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exclusively only on a file that is open for writing (flock(2), "NFS details"); and a disk
    without locks is named."""
    real = fcntl.flock

    def flock(descriptor: int, operation: int) -> None:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with environment_lock(where, "lab", Listener()):
        pass
    layout = tmp_path / "images" / "lab"
    with (
        oci_layout.staging(layout),
        pytest.raises(InUse, match="Another run is writing"),
        oci_layout.staging(layout),
    ):
        pass

    def without(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", without)
    with (
        pytest.raises(SystemRefused, match="cannot lock files"),
        environment_lock(where, "lab", Listener()),
    ):
        pass
