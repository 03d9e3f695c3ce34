from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from provision_runtime import fs
from provision_runtime.comm import collective
from provision_runtime.comm.ranks import Ranks, single_process
from tests.clocks import Clock
from tests.rank_threads import RankThreads


def test_atomic_write_creates_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "file with spaces"
    fs.atomic_write(path, b"old")
    fs.atomic_write(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_failed_atomic_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        fs.atomic_write(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_atomic_write_syncs_data_before_and_folder_after_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    sync, rename = os.fsync, Path.replace

    def noted_sync(descriptor: int) -> None:
        calls.append(
            "fsync " + ("folder" if Path(f"/proc/self/fd/{descriptor}").is_dir() else "file")
        )
        sync(descriptor)

    def noted_rename(self: Path, target: Any) -> Any:
        calls.append("rename")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(Path, "replace", noted_rename)
    fs.atomic_write(tmp_path / "file", b"content")
    assert calls == ["fsync file", "rename", "fsync folder"]


def test_write_synced_never_overwrites(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(FileExistsError):
        fs.write_synced(tmp_path / "file", b"new")


@pytest.mark.parametrize(("number", "is_raised"), [(errno.EINVAL, False), (errno.EIO, True)])
def test_only_disk_errors_of_a_folder_sync_are_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_raised: bool
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError) if is_raised else contextlib.nullcontext():
        fs.fsync_directory(tmp_path)


def test_wait_ends_when_the_path_appears(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "later"

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if clock.now > 1:
            path.touch()

    waited = fs.wait_until_visible(path, 5.0, clock.read, sleep)
    assert 1 < waited < 1.1


def test_wait_ends_at_the_deadline(tmp_path: Path) -> None:
    clock = Clock()
    with pytest.raises(fs.NotVisible, match=r"never did not become visible within 2 s"):
        fs.wait_until_visible(tmp_path / "never", 2.0, clock.read, clock.sleep)
    assert 2.0 <= clock.now < 2.1


def test_stale_handle_is_checked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, calls, stat = tmp_path / "file", [0], Path.stat
    path.touch()

    def stale_once(self: Path, **options: Any) -> os.stat_result:
        if self == path:
            calls[0] += 1
            if calls[0] == 1:
                raise OSError(errno.ESTALE, "Stale file handle")
        return stat(self, **options)

    monkeypatch.setattr(Path, "stat", stale_once)
    fs.wait_until_visible(path, 1.0, Clock().read, Clock().sleep)
    assert calls == [1]


def test_missing_permission_is_raised_without_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, **options: Any) -> os.stat_result:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(PermissionError):
        fs.wait_until_visible(tmp_path / "file", 1.0, Clock().read, Clock().sleep)


def test_stale_handle_is_reopened_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"content")
    read, tried = Path.read_bytes, [0]

    def stale_twice(self: Path) -> bytes:
        tried[0] += 1
        if tried[0] < 3:
            raise OSError(errno.ESTALE, "Stale file handle")
        return read(self)

    monkeypatch.setattr(Path, "read_bytes", stale_twice)
    assert fs.read_bytes(tmp_path / "file") == b"content"
    assert tried == [3]


@pytest.mark.parametrize(("number", "count"), [(errno.ESTALE, 4), (errno.EACCES, 1)])
def test_only_stale_handles_are_tried_again(number: int, count: int) -> None:
    tries = []

    def fail() -> None:
        tries.append(1)
        raise OSError(number, os.strerror(number))

    with pytest.raises(OSError):
        fs.retry_stale(fail, tries=4, sleep=lambda _: None)
    assert len(tries) == count


def test_one_rank_creates_the_folder_and_all_wait_for_it(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "folder"
    waited = RankThreads(3).run(lambda ranks: fs.make_directory(folder, ranks, 5.0))
    assert folder.is_dir()
    assert len(set(waited)) == 1 and waited[0] < 5


def test_failed_folder_creation_raises_on_all_ranks(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    errors = RankThreads(2).run(
        lambda ranks: fs.make_directory(tmp_path / "file" / "folder", ranks, 5.0)
    )
    for error in errors:
        assert isinstance(error, collective.RankFailed)
        assert (error.errno, error.ranks) == (errno.ENOTDIR, (0,))
        assert str(error) == f"rank 0: Not a directory: {tmp_path}/file/folder"


def test_folder_invisible_to_one_rank_raises_on_all(tmp_path: Path) -> None:
    """Rank 1 has another folder at that path, as where a mount is missing."""

    def make(ranks: Ranks) -> float:
        return fs.make_directory(tmp_path / f"host{min(ranks.rank, 1)}" / "folder", ranks, 0.1)

    (tmp_path / "host1").mkdir()
    for error in RankThreads(2).run(make):
        assert isinstance(error, collective.RankFailed)
        assert error.ranks == (1,)
        assert "did not become visible within 0.1 s: is its folder shared?" in str(error)


def test_path_existence_is_decided_once(tmp_path: Path) -> None:
    """Rank 1 would see something else."""

    def look(ranks: Ranks) -> bool:
        return fs.exists(tmp_path / f"host{ranks.rank}" / "file", ranks)

    (tmp_path / "host0").mkdir()
    (tmp_path / "host0" / "file").touch()
    assert RankThreads(2).run(look) == [True, True]


def test_any_ranks_error_is_raised_on_all_with_its_ranks() -> None:
    def work(ranks: Ranks) -> list[Any]:
        return collective.run_on_all("work", ranks, lambda: 1 // (ranks.rank % 2))

    for error in RankThreads(4).run(work):
        assert str(error).startswith("ranks 0, 2: ZeroDivisionError: ")
        assert error.ranks == (0, 2)


def test_single_process_takes_the_same_steps(tmp_path: Path) -> None:
    fs.make_directory(tmp_path / "folder", single_process())
    collective.barrier("made", single_process())
    assert fs.exists(tmp_path / "folder", single_process())
    assert collective.broadcast("number", single_process(), lambda: 7) == 7
