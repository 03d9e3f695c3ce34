"""Locks between processes: real processes, real locks."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from provision.core.errors import InUse, SystemRefused
from provision.core.file_locks import environment_lock, exclusive_lock, open_lock_file, try_lock
from provision.core.paths import Folders
from provision.core.types import MeterContext
from provision.image import oci_layout

HOLDER = """
import sys
from pathlib import Path
from provision.core.file_locks import environment_lock
from provision.core.paths import Folders
class Quiet:
    def info(self, text): print(text, flush=True)
folders = Folders(data=Path(sys.argv[1]), cache=Path(sys.argv[1]), envs=Path(sys.argv[1]))
with environment_lock(folders, "lab", Quiet()):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(data=tmp_path, cache=tmp_path, envs=tmp_path)


class Recorder:
    """A progress that records what is reported."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def info(self, text: str) -> None:
        self.messages.append(text)

    warn = info

    def meter(self, title: str, total: int) -> MeterContext:
        raise AssertionError("nothing to measure")


def start_holder(folders: Folders) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLDER, str(folders.data)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout and child.stdout.readline() == "locked\n"
    return child


def test_locked_environment_is_refused_naming_the_holder(folders: Folders) -> None:
    with start_holder(folders) as child:
        try:
            with (
                pytest.raises(InUse, match=f"lab is in use by process {child.pid} "),
                environment_lock(folders, "lab", Recorder(), wait=False),
            ):
                pass
            with environment_lock(folders, "other", Recorder(), wait=False):
                pass
        finally:
            child.kill()


def test_waits_for_the_holder_and_says_so(folders: Folders) -> None:
    recorder = Recorder()
    with start_holder(folders) as child:
        os.set_blocking(child.stdin.fileno(), True)  # type: ignore[union-attr]
        timer = subprocess.Popen(["sh", "-c", f"sleep 0.5; kill -9 {child.pid}"])
        with environment_lock(folders, "lab", recorder):
            pass
        timer.wait()
    assert recorder.messages and f"process {child.pid}" in recorder.messages[0]


def test_locking_again_writes_nothing(folders: Folders) -> None:
    with environment_lock(folders, "lab", Recorder()):
        pass
    before = {path: path.stat().st_mtime_ns for path in folders.data.rglob("*")}
    with environment_lock(folders, "lab", Recorder()):
        pass
    assert {path: path.stat().st_mtime_ns for path in folders.data.rglob("*")} == before


def test_file_is_locked_until_closed(tmp_path: Path) -> None:
    with exclusive_lock(tmp_path / "a"):
        second = open_lock_file(tmp_path / "a")
        assert try_lock(second) == "busy"
    assert try_lock(second) == "locked"
    os.close(second)


def test_nfs_locks_work_and_missing_lock_support_is_named(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS locks exclusively only a file that is open for writing (flock(2), "NFS details")."""
    flock = fcntl.flock

    def flock_of_nfs(descriptor: int, operation: int) -> None:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock_of_nfs)
    with environment_lock(folders, "lab", Recorder()):
        pass
    layout = tmp_path / "images" / "lab"
    with oci_layout.staging(layout) as new:
        assert oci_layout.unfinished(layout) == [] and new.exists()

    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with (
        pytest.raises(SystemRefused, match="cannot lock files"),
        environment_lock(folders, "lab", Recorder()),
    ):
        pass
    descriptor = open_lock_file(tmp_path / "a")
    assert try_lock(descriptor) == "unsupported"
    os.close(descriptor)


def test_a_link_in_place_of_a_lock_file_is_refused(folders: Folders, tmp_path: Path) -> None:
    """In a folder that others may write to, it would make or open any file of ours."""
    (folders.data / "locks").mkdir()
    victim = tmp_path / "authorized_keys"
    (folders.data / "locks" / "lab").symlink_to(victim)
    with (
        pytest.raises(SystemRefused, match="locks/lab is a link"),
        environment_lock(folders, "lab", Recorder()),
    ):
        pass
    assert not victim.exists()


def test_data_folder_that_all_may_write_to_is_warned_of(tmp_path: Path) -> None:
    recorder = Recorder()
    data = tmp_path / "the data"
    folders = Folders(data=data, cache=tmp_path, envs=tmp_path)
    before = os.umask(0)
    try:
        with environment_lock(folders, "lab", recorder):
            pass
    finally:
        os.umask(before)
    assert recorder.messages == []
    assert {path.stat().st_mode & 0o777 for path in (data, data / "locks")} == {0o755}
    data.chmod(0o777)
    with environment_lock(folders, "lab", recorder):
        pass
    assert f"every user may write to {data} (mode 777)" in recorder.messages[0]


@pytest.mark.root
def test_data_folder_of_another_account_is_warned_of_where_a_third_may_write(
    tmp_path: Path,
) -> None:
    """A lab may share one, in the hands of one account."""
    recorder = Recorder()
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    os.chown(data, 65533, 65533)
    folders = Folders(data=data, cache=tmp_path, envs=tmp_path)
    with environment_lock(folders, "lab", recorder):
        pass
    assert recorder.messages == []
    os.chown(data, 65533, 100)
    data.chmod(0o2775)
    with environment_lock(folders, "lab", recorder):
        pass
    assert "the group users may write to" in recorder.messages[0]
