"""A change of files and prefix happens whole or not at all: after an error, and after a kill before
any of its steps on the disk."""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from provision.adapters.installed_files import INSTALL_RECORD
from provision.core.atomic import (
    atomic_write,
    remove_leftovers,
    replace_directory,
    staging_path,
)
from provision.core.paths import Folders
from provision.core.types import Prefix
from provision.environment import prefix as prefixes
from provision.environment import prefix_change
from provision.environment.marker import Marker
from provision.environment.marker import write as write_marker
from provision.workflow import change_journal
from tests.progress import Recorder

NAME = "lab"
BEFORE = {"spec.yml": "old spec\n", "environment.yml": "old\n", "conda-lock.yml": "old lock\n"}
AFTER = {"spec.yml": "new spec\n", "conda-lock.yml": "new lock\n", "Dockerfile": "new\n"}
OLD, NEW = "1" * 64, "2" * 64
# What a step on the disk is called where Python asks the kernel for it.
STEPS = {"open", "os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir", "shutil.rmtree"}


def make_prefix(path: Path, lock_sha256: str) -> Prefix:
    (path / "bin").mkdir(parents=True)
    (path / "bin" / "python").write_text(lock_sha256)
    (path / "lib" / "package").mkdir(parents=True)
    (path / "lib" / "package" / lock_sha256).write_text("")
    (path / "conda-meta").mkdir()
    (path / INSTALL_RECORD).write_text(lock_sha256)
    write_marker(path, Marker(name=NAME, folder="x", lock_sha256=lock_sha256))
    return Prefix(name=NAME, path=path, lock_sha256=lock_sha256)


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    folders = Folders(data=tmp_path / "data", cache=tmp_path / "cache", envs=tmp_path / "envs")
    lay_out(folders)
    return folders


def lay_out(folders: Folders) -> Prefix:
    for name, text in BEFORE.items():
        atomic_write(folders.envs / NAME / name, text)
    return make_prefix(folders.prefixes / NAME, OLD)


def change(folders: Folders, prefix: Prefix) -> None:
    """What `add` does on the disk."""
    with change_journal.all_or_nothing(folders, folders.envs / NAME, AFTER, prefix):
        for name, text in AFTER.items():
            atomic_write(folders.envs / NAME / name, text)
        make_prefix(staging_path(prefix.path), NEW)
        replace_directory(prefix.path)


def change_wheels(folders: Folders, prefix: Prefix) -> None:
    """What `add` does where only wheels change: one is new, one in another version."""
    with change_journal.all_or_nothing(folders, folders.envs / NAME, AFTER, prefix):
        for name, text in AFTER.items():
            atomic_write(folders.envs / NAME / name, text)
        staging = make_prefix(staging_path(prefix.path), NEW).path
        (staging / "lib" / "added.py").write_text("")
        replaced = ("bin/python", "lib/package")
        change = prefix_change.WheelChange(
            prefix=prefix,
            new=mock.ANY,
            leaving=frozenset(),
            outgoing=replaced,
            incoming=(*replaced, "lib/added.py"),
            record=mock.ANY,
        )
        prefix_change.exchange(change)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def state(folders: Folders) -> dict[str, bytes]:
    return {**contents(folders.envs), **contents(folders.prefixes)}


def test_a_change_that_succeeds_stays(folders: Folders) -> None:
    prefix = prefixes.find(NAME, folders.prefixes / NAME)
    assert prefix is not None
    change(folders, prefix)
    assert (folders.envs / NAME / "spec.yml").read_text() == "new spec\n"
    assert (prefix.python).read_text() == NEW
    assert [path.name for path in folders.prefixes.iterdir()] == [NAME]
    assert not change_journal.is_unfinished(folders, NAME)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("written", range(5))
def test_an_error_puts_all_back(folders: Folders, written: int, error: type[BaseException]) -> None:
    before = state(folders)
    prefix = prefixes.find(NAME, folders.prefixes / NAME)
    assert prefix is not None
    with (
        pytest.raises(error),
        change_journal.all_or_nothing(folders, folders.envs / NAME, AFTER, prefix),
    ):
        for name, text in list(AFTER.items())[:written]:
            atomic_write(folders.envs / NAME / name, text)
        make_prefix(staging_path(prefix.path), NEW)
        if written == 4:
            replace_directory(prefix.path)
        raise error
    assert state(folders) == before
    assert not change_journal.is_unfinished(folders, NAME)


def test_an_error_leaves_nothing_of_a_new_environment(folders: Folders) -> None:
    folder = folders.envs / "new"
    with pytest.raises(ValueError), change_journal.all_or_nothing(folders, folder, AFTER):
        atomic_write(folder / "spec.yml", AFTER["spec.yml"])
        raise ValueError
    assert not folder.exists()


def killed_before(step: int, folder: Path, work: Callable[[], None]) -> bool:
    """Work in a child; whether it was killed before its step of that number, or came to its end."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    left = step

    def count(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if event in STEPS and any(str(folder) in str(argument) for argument in arguments):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    work()
    os._exit(0)


@pytest.mark.parametrize("change", [change, change_wheels])
def test_a_change_that_is_killed_at_any_step_is_taken_back(
    tmp_path: Path, change: Callable[[Folders, Prefix], None]
) -> None:
    """Also if taking it back is killed. At the end of the change, it stays whole. What is no whole
    prefix is none: the next command makes it one."""
    outcomes = set()
    for step in range(1000):
        folders = Folders(
            data=tmp_path / f"{step}" / "data",
            cache=tmp_path / f"{step}" / "cache",
            envs=tmp_path / f"{step}" / "envs",
        )
        prefix = lay_out(folders)
        before = state(folders)
        root = folders.data.parent
        was_killed = killed_before(step, root, functools.partial(change, folders, prefix))
        unfinished = change_journal.is_unfinished(folders, NAME)
        present = prefixes.find(NAME, prefix.path)
        if present is None:
            assert unfinished
            change_journal.heal_prefixes(folders, Recorder())
            assert state(folders) == before
        else:
            other = NEW if present.lock_sha256 == OLD else OLD
            assert other not in "".join(contents(prefix.path))
            assert present.python.read_text() == present.lock_sha256
            assert (present.path / "lib" / "added.py").exists() == (
                change is change_wheels and other == OLD
            )
        take_back = functools.partial(
            change_journal.take_back_killed_change, folders, NAME, Recorder()
        )
        killed_before(step % 7, root, take_back)
        take_back()
        # Of a change that ended, the replaced prefix may still be there; builds remove it.
        remove_leftovers(prefix.path)
        assert not change_journal.is_unfinished(folders, NAME)
        is_before = state(folders) == before
        files = contents(folders.envs / NAME)
        is_after = prefix.python.read_text() == NEW and all(
            files[name] == text.encode() for name, text in AFTER.items()
        )
        assert is_before or (is_after and not unfinished), (step, state(folders))
        outcomes.add((is_before, unfinished))
        if not was_killed:
            break
    assert outcomes >= {(True, True), (True, False), (False, False)} and step > 25


def test_files_that_were_edited_after_the_kill_stay(folders: Folders) -> None:
    prefix = prefixes.find(NAME, folders.prefixes / NAME)
    assert prefix is not None
    journal = folders.change(NAME)
    with change_journal.all_or_nothing(folders, folders.envs / NAME, AFTER, prefix):
        atomic_write(folders.envs / NAME / "spec.yml", AFTER["spec.yml"])
        killed = journal.read_bytes()
    atomic_write(journal, killed)
    assert change_journal.is_unfinished(folders, NAME)
    (folders.envs / NAME / "conda-lock.yml").write_text("of a colleague\n")
    before, lines = state(folders), Recorder()
    change_journal.take_back_killed_change(folders, NAME, lines)
    assert state(folders) == before and "conda-lock.yml was edited" in lines.warnings[0]
    assert not change_journal.is_unfinished(folders, NAME)
