"""Second copies of files: when there are two, and how damage is healed. Without torch: objects stand
for whatever ranks save."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from provision_runtime.checkpoint import (
    CheckpointWarning,
    DamagedFile,
    catalog,
    copies,
    layout,
    list_steps,
    loader,
    manifest,
    prune,
    rehash,
    retention,
    verify,
)
from provision_runtime.checkpoint.inspection import audit
from provision_runtime.checkpoint.items import MIN_FILE_BYTES
from provision_runtime.checkpoint.manifest import Manifest
from provision_runtime.checkpoint.storage import Storage
from provision_runtime.checkpoint.writer import ByteCount
from tests.checkpoints import big, flip, manifest_of, save
from tests.rank_threads import RankThreads


def contents(step: int) -> dict[str, bytes]:
    """Frozen values in a file of their own and in a pack, and trained ones."""
    small = {f"small{number}": b"%d" % number * 100 for number in range(9)}
    return {"frozen": big("f"), "trained": b"%08d" % step * (MIN_FILE_BYTES // 8), **small}


def run(root: Path, saves: int, keep: int) -> None:
    for step in range(1, saves + 1):
        save(root, step, contents(step))
        prune(root, keep=keep)


def names(content: Manifest) -> set[str]:
    return {entry.name for entry in content.files}


def restore(root: Path) -> int:
    """The step that a new process would load, after healing what can be healed; its files are
    whole."""
    layout.damaged.discard(str(root))
    storage = Storage(root)
    for folder in catalog.choose(storage, "latest", catalog.PREVIOUS):
        try:
            content = loader._read_manifest(storage, folder)
            loader.verify_files(storage, folder, content, names(content), ByteCount())
        except DamagedFile:
            continue
        assert verify(root, step=content.step) == []
        return content.step
    raise AssertionError("nothing can be restored")


def places(root: Path, folders: list[str]) -> dict[str, set[int]]:
    """The inodes of each file's content, and of how many steps it is."""
    inodes: dict[str, set[int]] = {}
    for path in root.glob("*/*"):
        if path.parent.name in (*folders, "copies"):
            inodes.setdefault(path.name, set()).add(path.stat().st_ino)
    return inodes


@pytest.mark.parametrize("keep", [1, 2, 3, 5])
def test_what_is_kept_is_there_twice(tmp_path: Path, keep: int) -> None:
    """At every save, also those of the same content that is written again now and then."""
    for step in range(1, 29):
        save(tmp_path, step, contents(step))
        prune(tmp_path, keep=keep)
        kept = [f"step-{number:012d}" for number in list_steps(tmp_path)]
        assert len(kept) == min(step, keep)
        inodes = places(tmp_path, kept)
        for folder in kept:
            for entry in catalog.read_manifest(Storage(tmp_path), folder).files:
                users = sum((tmp_path / other / entry.name).exists() for other in kept)
                if users > 1 or len(kept) == 1:
                    assert len(inodes[entry.name]) > 1, (step, entry.name)
    trained = {path.name for path in (tmp_path / "copies").iterdir()}
    assert len(trained) == (4 if keep == 1 else 2), "copies that nothing needs stay"


@pytest.mark.parametrize("keep", [1, 3])
@pytest.mark.filterwarnings("ignore::provision_runtime.checkpoint.CheckpointWarning")
def test_any_damaged_file_leaves_a_whole_checkpoint(tmp_path: Path, keep: int) -> None:
    for step in range(1, 6):
        save(tmp_path, step, contents(step))
        prune(tmp_path, keep=keep)
        files = {path.stat().st_ino: path for path in tmp_path.glob("*/*")}
        for path in files.values():
            intact, inode = path.read_bytes(), path.stat().st_ino
            is_of_all = keep == 1 or step == 1
            flip(path)
            at = restore(tmp_path)
            assert at == step or (not is_of_all and at == step - 1), path
            if path.stat().st_ino == inode:
                path.write_bytes(intact)


def test_missing_and_truncated_files_are_healed(tmp_path: Path) -> None:
    run(tmp_path, 3, keep=3)
    frozen = manifest_of(tmp_path, 3).objects["frozen"].file
    path = tmp_path / "step-000000000003" / frozen
    path.unlink()
    with pytest.warns(CheckpointWarning, match="it is missing .*; it was replaced"):
        assert restore(tmp_path) == 3
    path.write_bytes(b"")
    with pytest.warns(CheckpointWarning, match="0 bytes instead of"):
        assert restore(tmp_path) == 3
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".tmp")]


def test_healing_replaces_the_file_in_every_checkpoint(tmp_path: Path) -> None:
    run(tmp_path, 3, keep=3)
    frozen = manifest_of(tmp_path, 3).objects["frozen"].file
    flip(tmp_path / "step-000000000001" / frozen)
    with pytest.warns(CheckpointWarning):
        assert restore(tmp_path) == 3
    assert [verify(tmp_path, step=step) for step in (1, 2, 3)] == [[], [], []]
    linked = {(tmp_path / f"step-{step:012d}" / frozen).stat().st_ino for step in (1, 2, 3)}
    assert len(linked) == 1, "the healed file is linked again"
    # After known damage, the next save links nothing.
    assert save(tmp_path, 4, contents(4)).linked == 0


def test_two_damaged_copies_are_not_taken_for_good(tmp_path: Path) -> None:
    run(tmp_path, 3, keep=3)
    frozen = manifest_of(tmp_path, 3).objects["frozen"].file
    for folder in ("step-000000000003", "copies"):
        flip(tmp_path / folder / frozen)
    with pytest.raises(AssertionError, match="nothing can be restored"):
        restore(tmp_path)
    assert {damage.file for damage in verify(tmp_path)} == {frozen}


def test_manifest_of_the_only_checkpoint_is_healed_wherever_the_bit_is(tmp_path: Path) -> None:
    run(tmp_path, 2, keep=1)
    path = tmp_path / "step-000000000002" / manifest.NAME
    content = path.read_bytes()
    for at in (0, len(manifest.HEAD) + 3, len(manifest.HEAD) + manifest.DIGITS, len(content) - 9):
        path.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        with pytest.warns(CheckpointWarning, match=r"manifest\.json is damaged"):
            assert restore(tmp_path) == 2
        assert path.read_bytes() == content


def test_manifest_is_never_healed_by_that_of_another_save(tmp_path: Path) -> None:
    """The step was saved again: a copy of its old manifest may still exist."""
    run(tmp_path, 1, keep=1)
    old = (tmp_path / "step-000000000001" / manifest.NAME).read_bytes()
    save(tmp_path, 2, contents(2))
    (tmp_path / "step-000000000001" / manifest.NAME).unlink()
    path = tmp_path / "step-000000000002" / manifest.NAME
    flip(path)
    with pytest.raises(AssertionError, match="nothing can be restored"):
        restore(tmp_path)
    assert path.read_bytes() != old


@pytest.mark.parametrize("keep", [1, 2])
def test_full_disk_removes_no_last_protection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: int
) -> None:
    """The newest of those to be removed stays, and is removed once there is space."""
    for step in range(1, 6):
        save(tmp_path, step, contents(step))
    monkeypatch.setattr(Storage, "free", lambda _: MIN_FILE_BYTES)
    with pytest.warns(CheckpointWarning, match="No space|are free"):
        pruned = prune(tmp_path, keep=keep)
    left = f"step-{5 - keep:012d}"
    assert f"{left} stays in their place" in pruned.problems[0]
    assert left not in pruned.removed
    assert list_steps(tmp_path) == list(range(5 - keep, 6))
    assert not (tmp_path / "copies").exists()
    monkeypatch.undo()
    assert prune(tmp_path, keep=keep).removed == (left,)


def test_copying_that_fails_midway_leaves_whole_copies_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(1, 4):
        save(tmp_path, step, contents(step))
    replace, written = Storage.replace, 0

    def fail(self: Storage, folder: str, name: str, content: bytes, same: None = None) -> None:
        nonlocal written
        written += 1
        if written > 1:
            raise OSError(errno.EDQUOT, "Disk quota exceeded", name)
        replace(self, folder, name, content, same)

    monkeypatch.setattr(Storage, "replace", fail)
    with pytest.warns(CheckpointWarning, match="Disk quota exceeded"):
        prune(tmp_path, keep=1)
    assert list_steps(tmp_path) == [2, 3]
    for path in (tmp_path / "copies").iterdir():
        assert copies.is_intact(path.name, path.read_bytes())


def test_damage_found_while_copying_keeps_the_checkpoint_before(tmp_path: Path) -> None:
    for step in (1, 2):
        save(tmp_path, step, contents(step))
    trained = manifest_of(tmp_path, 2).objects["trained"]
    flip(tmp_path / "step-000000000002" / trained.file)
    with pytest.warns(CheckpointWarning, match="is damaged"):
        prune(tmp_path, keep=1)
    assert restore(tmp_path) == 1


def test_ranks_share_the_copying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step, {**contents(step), **{letter: big(letter) for letter in "abcdefgh"}})
    writers: dict[str, list[str]] = {}
    replace = Storage.replace

    class Counted(Storage):
        def replace(self, folder: str, name: str, content: bytes, same: str | None = None) -> None:
            writers.setdefault(name, []).append(threading.current_thread().name)
            replace(self, folder, name, content, same)

    plan = retention.plan_pruning(Storage(tmp_path), 2)
    pruned = RankThreads(3).run(
        lambda ranks: retention.carry_out(Counted(tmp_path), plan, ranks, 2)
    )
    assert [outcome.problems for outcome in pruned] == [()] * 3
    assert {len(threads) for threads in writers.values()} == {1}
    assert len({threads[0] for threads in writers.values()}) > 1
    assert set(writers) == {path.name for path in (tmp_path / "copies").iterdir()}
    assert len(writers) == 9
    assert list_steps(tmp_path) == [2, 3]


def test_failure_of_one_rank_is_said_on_all(tmp_path: Path) -> None:
    for step in (1, 2):
        save(tmp_path, step, contents(step))
    plan = retention.plan_pruning(Storage(tmp_path), 1)

    class Full(Storage):
        def free(self) -> int:
            return 0

    pruned = RankThreads(2).run(
        lambda ranks: retention.carry_out(
            (Full if ranks.rank else Storage)(tmp_path), plan, ranks, 1
        )
    )
    assert all("rank 1" in outcome.problems[0] for outcome in pruned)
    assert list_steps(tmp_path) == [1, 2]


def test_copies_give_way_to_a_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path, 1, keep=1)
    copied = len(list((tmp_path / "copies").iterdir()))
    assert copied

    def free(self: Storage) -> int:
        left = len(copies.names(self))
        return MIN_FILE_BYTES // 2 if left else 3 * MIN_FILE_BYTES

    monkeypatch.setattr(Storage, "free", free)
    assert save(tmp_path, 2, contents(2)).written
    assert copies.names(Storage(tmp_path)) == []
    assert verify(tmp_path) == []


def test_file_system_without_links_needs_copies_of_an_only_checkpoint_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    for step in (1, 2, 3):
        save(tmp_path, step, contents(step))
    assert prune(tmp_path, keep=2).copied_bytes == 0
    frozen = manifest_of(tmp_path, 3).objects["frozen"].file
    flip(tmp_path / "step-000000000003" / frozen)
    with pytest.warns(CheckpointWarning):
        assert restore(tmp_path) == 3
    assert prune(tmp_path, keep=1).copied_bytes > 2 * MIN_FILE_BYTES


def test_files_of_others_in_the_folder_of_copies_stay(tmp_path: Path) -> None:
    (tmp_path / "copies").mkdir()
    (tmp_path / "copies" / "notes.txt").write_text("mine")
    run(tmp_path, 4, keep=2)
    assert (tmp_path / "copies" / "notes.txt").read_text() == "mine"


# Hashing again


def lettered(step: int) -> dict[str, bytes]:
    return {**{letter: big(letter) for letter in "abcdefghij"}, "step": b"%d" % step}


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    for step in (1, 2, 3):
        save(tmp_path, step, lettered(step))
        prune(tmp_path, keep=3)
    return tmp_path


class Watched(Storage):
    """Remembers what was read from the disk."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.hashed: list[Path] = []

    def drop_cache(self, folder: str, name: str) -> None:
        self.hashed.append(Path(self.root, folder, name))
        super().drop_cache(folder, name)


def hash_again(storage: Storage, now: int) -> list[str]:
    return list(rehash.rehash(storage, now, threading.Event()))


def shared_files(root: Path) -> set[Path]:
    """Both copies of every file that all three steps have."""
    contents = copies.survey(Storage(root), catalog.intact_newest_first(Storage(root)))
    shared = [content for content in contents.values() if len(content.folders) == 3]
    return {root / home / name for content in shared for home, name in content.copies.values()}


@pytest.mark.parametrize("seconds_between_saves", [1, 3600])
def test_files_hashed_longest_ago_come_first(shared: Path, seconds_between_saves: int) -> None:
    storage = Watched(shared)
    for turn in range(2 * rehash.PARTS):
        before = len(storage.hashed)
        assert hash_again(storage, 10**9 + turn * seconds_between_saves) == []
        assert len(storage.hashed) - before < 12
    once = storage.hashed[:20]
    assert set(once) == shared_files(shared) and len(set(once)) == 20
    assert storage.hashed == once * 2


@pytest.mark.parametrize(("days", "is_all"), [(0.9, False), (1, True), (30, True), (-5, False)])
def test_files_not_hashed_for_a_day_are_due(shared: Path, days: float, is_all: bool) -> None:
    storage = Watched(shared)
    hash_again(storage, 10**9)
    storage.hashed.clear()
    hash_again(storage, 10**9 + int(days * rehash.MAX_AGE_S))
    assert (set(storage.hashed) == shared_files(shared)) == is_all


def test_hashing_again_reads_past_the_page_cache(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advice: set[tuple[Path, int]] = set()

    def advise(descriptor: int, offset: int, length: int, kind: int) -> None:
        assert (offset, length) == (0, 0)
        advice.add((Path(f"/proc/self/fd/{descriptor}").resolve(), kind))

    monkeypatch.setattr(os, "posix_fadvise", advise)
    hash_again(Storage(shared), 10**9)
    hash_again(Storage(shared), 2 * 10**9)
    assert advice == {(path, os.POSIX_FADV_DONTNEED) for path in shared_files(shared)}


@pytest.mark.parametrize("where", ["step-000000000002", "copies"])
def test_decay_is_repaired_before_anything_reads_it(shared: Path, where: str) -> None:
    storage = Storage(shared)
    frozen = manifest_of(storage, 2).objects["e"].file
    hash_again(storage, 10**9)
    flip(shared / where / frozen)
    [problem] = hash_again(storage, 2 * 10**9)
    assert frozen in problem and "replaced by its other copy" in problem
    assert [verify(shared, step=step) for step in (1, 2, 3)] == [[], [], []]
    assert copies.is_intact(frozen, (shared / "copies" / frozen).read_bytes())


def test_decay_without_an_intact_copy_is_named_and_written_again(shared: Path) -> None:
    storage = Storage(shared)
    frozen = manifest_of(storage, 2).objects["e"].file
    hash_again(storage, 10**9)
    for folder in ("step-000000000002", "copies"):
        flip(shared / folder / frozen)
    problems = hash_again(storage, 2 * 10**9)
    assert len(problems) == 2 and all("no intact copy" in problem for problem in problems)
    # The training still has the content: the next save writes it, and the others heal from it.
    assert save(shared, 4, lettered(4)).written >= MIN_FILE_BYTES
    hash_again(storage, 3 * 10**9)
    assert [verify(shared, step=step) for step in (1, 2, 3, 4)] == [[]] * 4


@pytest.mark.parametrize("removed", ["step-000000000003", "copies"])
def test_what_is_removed_meanwhile_is_no_damage(shared: Path, removed: str) -> None:
    class Pruned(Storage):
        def drop_cache(self, folder: str, name: str) -> None:
            if folder == removed == "copies":
                self.discard(folder, name)
            elif folder == removed and folder in self.folders():
                self.remove(folder)

    hash_again(Storage(shared), 10**9)
    assert hash_again(Pruned(shared), 2 * 10**9) == []
    assert removed == "copies" or removed not in Storage(shared).folders()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"times": 1}', '{"times": [1]}', '{"times": [NaN]}', "[" * 5000, "\0"],
)
def test_record_that_cannot_be_read_counts_as_none(shared: Path, text: str) -> None:
    storage = Storage(shared)
    (shared / "copies" / rehash.RECORD).write_text(text)
    assert rehash.read_times(storage, 1000) == [999] * rehash.PARTS
    assert hash_again(storage, 1000) == []
    assert sorted(rehash.read_times(storage, 1000)) == [999] * (rehash.PARTS - 1) + [1000]


def test_times_after_now_count_as_none(shared: Path) -> None:
    """The clock was set back: the files would not be due until it is there again."""
    hash_again(Storage(shared), 10**9)
    assert rehash.read_times(Storage(shared), 1000) == [999] * rehash.PARTS


def test_hashing_again_stops_when_the_run_ends(shared: Path) -> None:
    stopped = threading.Event()
    stopped.set()
    storage = Watched(shared)
    hash_again(storage, 10**9)
    times = rehash.read_times(storage, 2 * 10**9)
    storage.hashed.clear()
    assert list(rehash.rehash(storage, 2 * 10**9, stopped)) == []
    assert len(storage.hashed) <= 1
    assert rehash.read_times(storage, 2 * 10**9) == times, "it begins there again"


# Inspection


def test_verify_reports_damaged_copies(shared: Path) -> None:
    storage = Storage(shared)
    result = audit.audit(storage, audit.ALL)
    assert [(row.verdict, row.files) for row in result.checkpoints] == [("whole", 11)] * 3
    frozen = manifest_of(storage, 2).objects["e"].file
    flip(shared / "copies" / frozen)
    result = audit.audit(storage, audit.ALL)
    assert [row.folder for row in result.checkpoints if row.verdict == "damaged"] == ["copies"]
    assert not result.is_whole


def test_one_kept_beside_old_ones_is_there_twice(tmp_path: Path) -> None:
    """What `every` or `best` keeps may be old: damage to the last would cost all since."""
    for step in range(1, 8):
        save(tmp_path, step, contents(step))
        prune(tmp_path, keep=1, every=3)
    assert list_steps(tmp_path) == [3, 6, 7]
    folder = tmp_path / "step-000000000007"
    for path in folder.iterdir():
        inode = path.stat().st_ino
        flip(path)
        with pytest.warns(CheckpointWarning):
            assert restore(tmp_path) == 7
        assert path.stat().st_ino != inode


class PrunedMeanwhile(Storage):
    """Another process removes the older step after the steps were surveyed, before they are copied."""

    def free(self) -> int:
        self.remove("step-000000000001")
        return super().free()


@pytest.mark.parametrize("newest", [1, 2])
def test_a_step_that_another_process_removed_is_not_damaged(tmp_path: Path, newest: int) -> None:
    for step in range(1, newest + 1):
        save(tmp_path, step, contents(step))
    storage = PrunedMeanwhile(tmp_path)
    copies.make(storage, catalog.intact_newest_first(storage), is_alone=True)
    assert str(tmp_path) not in layout.damaged
    assert verify(tmp_path, step=newest) == [] if newest == 2 else list_steps(tmp_path) == []
