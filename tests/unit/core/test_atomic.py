"""Files and directories that change in one step, and what killed builds leave."""

from __future__ import annotations

import os
import stat
import threading
import time
from pathlib import Path

import pytest

from provision.core.atomic import (
    atomic_write,
    backup_path,
    remove_leftovers,
    remove_leftovers_until_quiet,
    replace_directory,
    staging_path,
)


def test_atomic_write_of_text_and_bytes_keeps_the_mode(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a"
    atomic_write(path, "é")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"\xc3\xa9", 0o644)
    atomic_write(path, b"\0", mode=0o600)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"\0", 0o600)
    assert [other.name for other in path.parent.iterdir()] == ["a"]


def test_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    """So does a device: root could replace /dev/null."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        atomic_write(pipe, "a")
        assert os.read(reader, 2) == b"a"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


@pytest.mark.root
def test_a_device_stays_a_device(tmp_path: Path) -> None:
    null = tmp_path / "null"
    os.mknod(null, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    atomic_write(null, "a")
    assert null.is_char_device()


def test_failed_write_leaves_only_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_text("old")
    with pytest.raises(UnicodeEncodeError):
        atomic_write(tmp_path / "a", "\udc80")

    def refuse(descriptor: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("os.fsync", refuse)
    with pytest.raises(OSError, match="No space left"):
        atomic_write(tmp_path / "a", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"


@pytest.mark.parametrize("is_replaced", [False, True])
def test_staged_directory_replaces_the_old_one(tmp_path: Path, is_replaced: bool) -> None:
    path = tmp_path / "lab"
    if is_replaced:
        path.mkdir()
        (path / "old").touch()
    staging_path(path).mkdir()
    (staging_path(path) / "new").touch()
    replace_directory(path)
    assert [child.name for child in path.iterdir()] == ["new"]
    assert backup_path(path).exists() == is_replaced
    remove_leftovers(path)
    assert [child.name for child in tmp_path.iterdir()] == ["lab"]


def test_only_own_leftovers_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "lab"
    staging_path(path).mkdir()
    backup_path(path).mkdir()
    staging_path(tmp_path / "other").mkdir()
    (tmp_path / ".lab.old").mkdir()  # somebody else's
    remove_leftovers(path)
    names = {child.name for child in tmp_path.iterdir()}
    assert names == {staging_path(tmp_path / "other").name, ".lab.old"}


def test_reappearing_leftovers_are_removed_again(tmp_path: Path) -> None:
    """A writer that outlives the interrupt creates the folder again, three times."""
    staging = staging_path(tmp_path / "lab")
    is_finished = threading.Event()

    def write() -> None:
        for _ in range(3):
            staging.mkdir()  # one folder: between two the removal would rightly come
            while staging.exists():
                time.sleep(0.01)
        is_finished.set()

    writer = threading.Thread(target=write)
    writer.start()
    remove_leftovers_until_quiet(tmp_path / "lab")
    writer.join(30)
    assert is_finished.is_set()
    assert not staging.exists()


def test_links_in_the_place_of_leftovers_are_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "thesis.tex").write_text("years")
    path = tmp_path / "lab"
    staging_path(path).symlink_to(victim)
    backup_path(path).symlink_to(tmp_path / "nowhere")
    remove_leftovers(path)
    assert sorted(other.name for other in tmp_path.iterdir()) == ["victim"]
    assert (victim / "thesis.tex").read_text() == "years"
