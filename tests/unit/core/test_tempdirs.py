"""Temporary directories: removed after use; those of killed processes are swept by the next user."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from provision.core import tempdirs

HOLDER = """
from provision.core.tempdirs import temporary_directory
with temporary_directory('smoke') as path:
    print(path, flush=True)
    input()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary folder, for us and for children."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_directory_is_removed_with_the_block(temporary: Path) -> None:
    with tempdirs.temporary_directory("uv") as path:
        assert path.parent == temporary and not list(path.iterdir())
        (path / "folder").mkdir()
    with pytest.raises(ValueError), tempdirs.temporary_directory("uv"):
        raise ValueError
    assert not list(temporary.iterdir())


def test_only_directories_of_killed_processes_are_swept(
    temporary: Path,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout
        killed_ones = Path(child.stdout.readline().strip())
        (killed_ones / "report.json").write_text("{}")
        with tempdirs.temporary_directory("smoke") as own:
            assert killed_ones.exists() and own.exists()
        child.send_signal(signal.SIGKILL)
    assert killed_ones.exists()
    with tempdirs.temporary_directory("uv") as own:
        assert list(temporary.iterdir()) == [own]


def test_threads_do_not_interfere(temporary: Path) -> None:
    is_created, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with tempdirs.temporary_directory("uv"):
            is_created.set()
            leave.wait(30)

    other = threading.Thread(target=hold)
    other.start()
    assert is_created.wait(30)
    assert not tempdirs.remove_abandoned()
    leave.set()
    other.join(30)
    assert not list(temporary.iterdir())


def test_only_own_directories_are_swept(temporary: Path) -> None:
    (temporary / "somebody's").mkdir()
    (temporary / "provision.uv.file").write_text("no folder")
    (temporary / "provision.uv.link").symlink_to(temporary / "somebody's")
    left = temporary / "provision.uv.left"
    left.mkdir()
    assert tempdirs.remove_abandoned() == [left]
    assert len(list(temporary.iterdir())) == 3


def test_other_users_directories_are_left(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = temporary / f"{tempdirs.PREFIX}smoke.theirs"
    theirs.mkdir()
    owner = theirs.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert tempdirs.remove_abandoned() == []
    monkeypatch.setattr(os, "geteuid", lambda: owner)
    assert tempdirs.remove_abandoned() == [theirs]
