"""CheckpointManager without torch: objects stand for the state, and real checkpoints are made of
them."""

from __future__ import annotations

import errno
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from provision_runtime.checkpoint import (
    CheckpointManager,
    CheckpointWarning,
    copies,
    list_steps,
    rehash,
    saver,
    verify,
)
from provision_runtime.checkpoint.items import MIN_FILE_BYTES
from provision_runtime.checkpoint.storage import Storage
from provision_runtime.comm.ranks import Ranks, single_process
from tests import checkpoints
from tests.checkpoints import big, flip, manifest_of
from tests.rank_threads import RankThreads


@pytest.fixture(autouse=True)
def plans_of_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning needs torch; all that follows is real."""

    def prepare(state_dict: Any, root: Any, step: int, ranks: Ranks, **_: Any) -> Any:
        return lambda: checkpoints.save(root, step, state_dict, ranks)

    monkeypatch.setattr(saver, "prepare", prepare)


@pytest.fixture
def all_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All shared files are due after each save, and hashed before it returns."""
    start = rehash.Rehash.start

    def start_and_wait(self: rehash.Rehash, storage: Any) -> None:
        start(self, storage)
        self.wait()

    monkeypatch.setattr(rehash.Rehash, "start", start_and_wait)
    monkeypatch.setattr(rehash, "MAX_AGE_S", -1)


def manager(root: Path, keep: int | None, ranks: Ranks | None = None, **options: Any) -> Any:
    state = {"frozen": big("f"), "trained": b""}
    settings = {"every": 1, "on_signal": False, **options}
    return CheckpointManager(root, state, keep=keep, ranks=ranks or single_process(), **settings)


def save(made: CheckpointManager, step: int) -> None:
    made.state_dict["trained"] = b"%08d" % step * (MIN_FILE_BYTES // 8)
    made.save(step)


@pytest.mark.parametrize("keep", [1, 3, None])
def test_shared_files_are_there_twice_from_the_first_save_on(
    tmp_path: Path, keep: int | None
) -> None:
    made = manager(tmp_path, keep)
    for step in range(1, 6):
        save(made, step)
        newest = [f"step-{number:012d}" for number in list_steps(tmp_path)[-2:]]
        for content in copies.survey(Storage(tmp_path), newest).values():
            if len(content.folders) > 1 or len(newest) == 1:
                assert len(content.copies) > 1, (step, content.entry.name)
    assert len(list_steps(tmp_path)) == (keep or 5)


def test_ranks_save_and_prune_together(tmp_path: Path) -> None:
    def run(ranks: Ranks) -> None:
        made = manager(tmp_path, 2, ranks)
        made.state_dict = {f"frozen{ranks.rank}": big("abc"[ranks.rank])}
        for step in range(1, 5):
            made.save(step)

    assert RankThreads(3).run(run) == [None] * 3
    assert list_steps(tmp_path) == [3, 4]
    contents = copies.survey(Storage(tmp_path), ["step-000000000004"]).values()
    assert [len(content.copies) for content in contents] == [2, 2, 2]


def test_damage_found_in_the_background_is_named_at_the_next_save(
    tmp_path: Path, all_hashed: None
) -> None:
    made = manager(tmp_path, 2)
    for step in (1, 2):
        save(made, step)
    frozen = manifest_of(tmp_path, 2).objects["frozen"].file
    flip(tmp_path / "step-000000000002" / frozen)
    save(made, 3)
    with pytest.warns(CheckpointWarning, match=f"{frozen} was damaged: .*replaced"):
        save(made, 4)
    assert [verify(tmp_path, step=step) for step in (3, 4)] == [[], []]


def test_damage_found_after_the_last_save_is_named_at_the_end(
    tmp_path: Path, all_hashed: None
) -> None:
    damage = pytest.warns(CheckpointWarning, match="was damaged: .*replaced")
    with damage, manager(tmp_path, 2) as made:
        for step in (1, 2):
            save(made, step)
        flip(tmp_path / "step-000000000002" / manifest_of(tmp_path, 2).objects["frozen"].file)
        save(made, 3)


def test_only_rank_0_hashes_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks_that_hash = []

    def run(ranks: Ranks) -> None:
        made = manager(tmp_path, 2, ranks)
        monkeypatch.setattr(made._rehash, "start", lambda _: ranks_that_hash.append(ranks.rank))
        made.save(1)

    assert RankThreads(2).run(run) == [None] * 2
    assert ranks_that_hash == [0]


def test_thread_ends_with_the_run(tmp_path: Path) -> None:
    with manager(tmp_path, 3) as made:
        for step in (1, 2, 3):
            save(made, step)
    assert "provision-rehash" not in {thread.name for thread in threading.enumerate()}
    assert (tmp_path / "copies" / rehash.RECORD).exists()


def test_full_disk_keeps_one_more_until_the_next_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """keep=1 needs three times the state for a moment; with less, saving goes on all the same."""
    limit = int(5.5 * MIN_FILE_BYTES)

    def free(self: Storage) -> int:
        sizes = {path.stat().st_ino: path.stat().st_size for path in tmp_path.glob("*/*")}
        return limit - sum(sizes.values())

    begin = Storage.begin
    steps_at_begin: list[int] = []

    def count_steps(self: Storage, step: int) -> str:
        steps_at_begin.append(len(list_steps(tmp_path)))
        return begin(self, step)

    monkeypatch.setattr(Storage, "free", free)
    monkeypatch.setattr(Storage, "begin", count_steps)
    made = manager(tmp_path, 1)
    made.state_dict["frozen"] = b""
    made.state_dict["more"] = b""
    for step in range(1, 6):
        made.state_dict["more"] = b"%016d" % step * (MIN_FILE_BYTES // 16)
        if step == 1:
            save(made, step)
            continue
        with pytest.warns(CheckpointWarning, match="stays in their place"):
            save(made, step)
        assert list_steps(tmp_path) == [step - 1, step]
    assert steps_at_begin == [0, 1, 1, 1, 1], "a save needs the space of the other one"
    limit *= 2
    save(made, 6)
    assert list_steps(tmp_path) == [6]


def test_failing_prune_does_not_stop_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = manager(tmp_path, 1)
    save(made, 1)
    monkeypatch.setattr(copies, "make", lambda *_: 1 / 0)
    with pytest.warns(CheckpointWarning, match="ZeroDivisionError"):
        save(made, 2)
    assert list_steps(tmp_path) == [1, 2]


def test_step_that_rank_0_cannot_remove_keeps_the_ranks_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def refuse(source: Any, target: Any) -> None:
        if Path(source).name == "step-000000000001":
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(source))
        rename(source, target)

    monkeypatch.setattr(os, "rename", refuse)

    def run(ranks: Ranks) -> None:
        made = manager(tmp_path, 1, ranks)
        made.state_dict = {f"frozen{ranks.rank}": big("ab"[ranks.rank])}
        for step in range(1, 5):
            made.save(step)

    with pytest.warns(CheckpointWarning, match="step-000000000001 was not removed: .*busy"):
        assert RankThreads(2).run(run) == [None] * 2
    assert list_steps(tmp_path) == [1, 4]


def test_ranks_that_lack_space_for_copies_stay_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "SPACE_MARGIN", 1e9)

    def run(ranks: Ranks) -> None:
        made = manager(tmp_path, 1, ranks)
        made.state_dict = {f"frozen{ranks.rank}": big("ab"[ranks.rank])}
        for step in range(1, 5):
            made.save(step)

    with pytest.warns(CheckpointWarning, match="no second copies"):
        assert RankThreads(2).run(run) == [None] * 2
    assert list_steps(tmp_path) == [3, 4]


def test_sigterm_saves_before_the_loop_ends(tmp_path: Path) -> None:
    with manager(tmp_path, 3, every=100, on_signal=True, agree_every=1) as made:
        assert not made.after_step(1)
        signal.raise_signal(signal.SIGTERM)
        assert made.after_step(2)
    assert list_steps(tmp_path) == [2]
