"""What a checkpoint is on disk, without torch: objects stand for whatever ranks save. With tensors: tests/integration."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import random
import shutil
import string
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from provision_runtime.checkpoint import (
    CheckpointError,
    NoCheckpoint,
    NotCommitted,
    SaveProgress,
    catalog,
    disk_usage,
    errors,
    hashes,
    latest,
    layout,
    list_steps,
    manifest,
    metadata,
    prune,
    retention,
    verification,
    verify,
    writer,
)
from provision_runtime.checkpoint import contents as described
from provision_runtime.checkpoint import path as checkpoint_path
from provision_runtime.checkpoint import storage as file
from provision_runtime.checkpoint.items import MIN_FILE_BYTES, OBJECT, PACK_BYTES
from provision_runtime.checkpoint.layout import check_step
from provision_runtime.checkpoint.match import RecordRead
from provision_runtime.checkpoint.plan import Box, assign
from provision_runtime.checkpoint.reader import Reader
from provision_runtime.checkpoint.storage import Storage
from provision_runtime.checkpoint.writer import MAX_LINKS
from provision_runtime.comm import collective
from provision_runtime.comm.ranks import Ranks
from tests.checkpoints import big, flip, manifest_of, save
from tests.rank_threads import RankThreads

if TYPE_CHECKING:
    import torch


@pytest.fixture
def without_xxhash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashes, "XXH3_128", None)


def contents(folder: Path) -> dict[str, bytes]:
    manifest_of_step = manifest.loads((folder / manifest.NAME).read_bytes(), folder)
    return {
        name: (folder / at.file).read_bytes()[at.at : at.at + at.size]
        for name, at in manifest_of_step.objects.items()
    }


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_two_ranks_make_one_checkpoint(tmp_path: Path) -> None:
    shards = [{"zero": b"0" * 100}, {"one": b"1" * 100, "empty": b""}]
    commits = RankThreads(2).run(lambda ranks: save(tmp_path, 7, shards[ranks.rank], ranks))
    assert [Path(commit_of_rank.folder).name for commit_of_rank in commits] == [
        "step-000000000007"
    ] * 2
    assert names(tmp_path) == ["latest", "step-000000000007"]
    assert contents(tmp_path / "step-000000000007") == {**shards[0], **shards[1]}
    assert manifest_of(tmp_path, 7).world_size == 2


def test_unchanged_content_is_linked_and_survives_prune(tmp_path: Path) -> None:
    save(tmp_path, 1, {"a": big("a"), "b": big("b")})
    committed = save(tmp_path, 2, {"a": big("a"), "b": big("c")})
    assert (committed.written, committed.linked) == (
        MIN_FILE_BYTES,
        MIN_FILE_BYTES,
    )
    file_name = manifest_of(tmp_path, 2).objects["a"].file
    assert (tmp_path / "step-000000000002" / file_name).stat().st_nlink == 2
    assert prune(tmp_path, keep=1).removed == ("step-000000000001",)
    assert verify(tmp_path) == []
    assert contents(tmp_path / "step-000000000002") == {"a": big("a"), "b": big("c")}


def test_packs_without_changes_are_linked(tmp_path: Path) -> None:
    """Whatever their number and their sizes; a changed item is a new pack."""
    first = {f"n{index:03}": index.to_bytes(4, "big") * 25_000 for index in range(100)}
    second = {**first, "n010": b"x" * 100_000}
    save(tmp_path, 1, first)
    committed = save(tmp_path, 2, second)
    assert 0 < committed.written < PACK_BYTES + 100_000
    assert committed.linked == 10_000_000 - committed.written
    assert contents(tmp_path / "step-000000000002") == second
    assert verify(tmp_path) == []


def test_saving_a_step_again_makes_a_new_generation(tmp_path: Path) -> None:
    for content in (b"old", b"new", b"newest"):
        save(tmp_path, 1, {"a": content})
    assert names(tmp_path) == ["latest", "step-000000000001.2"]
    assert (tmp_path / "latest").read_bytes() == layout.pointer("step-000000000001.2")
    assert contents(tmp_path / "step-000000000001.2") == {"a": b"newest"}
    assert (list_steps(tmp_path), latest(tmp_path)) == ([1], 1)


def test_latest_is_the_last_commit_not_the_highest_step(tmp_path: Path) -> None:
    for step in (10, 30, 20):
        save(tmp_path, step, {"a": b"1"})
    assert (list_steps(tmp_path), latest(tmp_path)) == ([10, 20, 30], 20)
    (tmp_path / "latest").unlink()
    assert latest(tmp_path) == 20
    (tmp_path / "latest").write_bytes(layout.pointer("step-000000000099"))
    assert latest(tmp_path) == 20


def test_commit_order_continues_after_a_damaged_checkpoint(tmp_path: Path) -> None:
    for step in (30, 20):
        save(tmp_path, step, {"a": b"1"})
    damaged = tmp_path / "step-000000000020" / manifest.NAME
    damaged.write_bytes(damaged.read_bytes()[:-1])
    save(tmp_path, 10, {"a": b"1"})
    (tmp_path / "latest").unlink()
    assert latest(tmp_path) == 10


def test_commit_during_prune_stays(tmp_path: Path) -> None:
    """Both what was not there when it looked, and what `latest` does not name yet."""
    for step in (10, 20, 30):
        save(tmp_path, step, {"a": b"1"})

    class Late(Storage):
        def latest(self) -> str | None:
            named = super().latest()
            if named == "step-000000000030":
                save(tmp_path, 5, {"a": b"1"})
            return named

    assert retention.prune(Late(tmp_path), 1).removed == ("step-000000000010", "step-000000000020")
    (tmp_path / "latest").write_bytes(layout.pointer("step-000000000030"))
    assert prune(tmp_path, keep=1).removed == ()
    assert list_steps(tmp_path) == [5, 30]


def test_next_save_removes_what_could_not_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1, {"a": b"1"})
    with monkeypatch.context() as patch:

        def refuse(path: str, **_: object) -> None:
            raise OSError(5, "Input/output error", path)

        patch.setattr(shutil, "rmtree", refuse)
        save(tmp_path, 1, {"a": b"2"})
    assert len(names(tmp_path)) == 3
    save(tmp_path, 2, {"a": b"3"})
    assert names(tmp_path) == ["latest", "step-000000000001.1", "step-000000000002"]


def test_step_replaced_during_lookup_is_found(tmp_path: Path) -> None:
    save(tmp_path, 1, {"a": b"1"})
    (tmp_path / "latest").write_bytes(layout.pointer("step-000000000099"))

    class Moving(Storage):
        """Saved once more between its listing and its reading, three times."""

        left = 3

        def read(self, folder: str, name: str) -> bytes:
            if self.left:
                self.left -= 1
                save(tmp_path, 1, {"a": b"2"})
                (tmp_path / "latest").write_bytes(layout.pointer("step-000000000099"))
            return super().read(folder, name)

    assert catalog.latest(Moving(tmp_path)) == "step-000000000001.3"


def test_failure_on_one_rank_raises_on_all_and_leaves_nothing(tmp_path: Path) -> None:
    save(tmp_path, 1, {"a": b"old"})

    def fail(ranks: Ranks) -> Callable[[object], None]:
        def progress(_: object) -> None:
            if ranks.rank == 1:
                raise OSError(28, "No space left on device", "/somewhere")

        return progress

    errors = RankThreads(2).run(
        lambda ranks: save(tmp_path, 2, {f"{ranks.rank}": b"new"}, ranks, progress=fail(ranks))
    )
    assert [type(error) for error in errors] == [NotCommitted] * 2
    assert [(error.ranks, error.errno) for error in errors] == [((1,), 28)] * 2
    assert "keep fewer checkpoints" in str(errors[0])
    assert names(tmp_path) == ["latest", "step-000000000001"]


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    save(tmp_path, 1, {"a": big("a"), "b": b"small", "c": b"smaller"})
    return tmp_path / "step-000000000001"


def test_flipped_bits_are_reported_by_file_name(whole: Path) -> None:
    draw = random.Random(0)
    for name in names(whole):
        content = (whole / name).read_bytes()
        for _ in range(20):
            damaged = bytearray(content)
            damaged[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
            (whole / name).write_bytes(damaged)
            assert [damage.file for damage in verify(whole.parent)] == [name]
        (whole / name).write_bytes(content)
    assert verify(whole.parent) == []


def test_a_packed_record_is_compared_with_its_digest(tmp_path: Path) -> None:
    save(tmp_path, 1, {"b": b"small", "c": b"smaller"})
    content = manifest_of(tmp_path, 1)
    record, no_target = content.objects["b"], cast("torch.Tensor", None)
    folder, read = "step-000000000001", [RecordRead("b", record, (), no_target)]
    Reader(Storage(tmp_path), folder, content).check_packs(read)
    with (tmp_path / folder / record.file).open("r+b") as pack:
        pack.seek(record.at)
        pack.write(b"?")
    with pytest.raises(errors.DamagedFile, match="b in it is not what the manifest says"):
        Reader(Storage(tmp_path), folder, content).check_packs(read)


def test_every_flipped_manifest_bit_is_detected(whole: Path) -> None:
    content = (whole / manifest.NAME).read_bytes()
    for bit in range(0, 8 * len(content), 7):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(errors.DamagedFile):
            manifest.loads(bytes(damaged), "manifest.json")


def test_no_flipped_bit_of_latest_leads_to_another_step(tmp_path: Path) -> None:
    for step in (100, 200, 300):
        save(tmp_path, step, {"a": b"%d" % step})
    named, storage = tmp_path / "latest", Storage(tmp_path)
    content = named.read_bytes()
    damaged = [content[:-1], b"", b"step-000000000200\n", b"\xff" + content]
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(flipped))
    for wrong in damaged:
        named.write_bytes(wrong)
        assert Path(checkpoint_path(tmp_path)).name == "step-000000000300", wrong
    folders = catalog.choose(storage, "latest", catalog.PREVIOUS)
    assert folders == ["step-000000000300", "step-000000000200", "step-000000000100"]
    assert verify(tmp_path) == verify(tmp_path, step=200) == []
    assert catalog.latest(storage) == "step-000000000300"
    assert save(tmp_path, 400, {"a": b"400"}).folder == checkpoint_path(tmp_path)
    assert manifest_of(storage, 400).parent == "step-000000000300"


def test_unreadable_manifest_is_not_skipped(tmp_path: Path) -> None:
    for step in (100, 300, 200, 400):
        save(tmp_path, step, {"a": b"%d" % step})
    storage, names = (
        Storage(tmp_path),
        {step: f"step-{step:012d}" for step in (100, 200, 300, 400)},
    )

    def damage(*steps: int) -> None:
        for step in steps:
            (tmp_path / names[step] / manifest.NAME).write_bytes(b"{}")

    damage(300)  # made before 200, whose parent it is
    assert catalog.choose(storage, "latest", catalog.PREVIOUS) == [
        names[step] for step in (400, 300, 200, 100)
    ]
    (tmp_path / "latest").unlink()
    assert catalog.folder_of(storage, "latest") == names[300]  # nothing tells that it is older
    damage(400)
    assert catalog.folder_of(storage, "latest") == names[400]
    assert [(damage.folder, damage.file) for damage in verify(tmp_path)] == [
        (names[400], manifest.NAME)
    ]
    assert catalog.choose(storage, 400, catalog.PREVIOUS) == [
        names[step] for step in (400, 300, 200, 100)
    ]
    assert catalog.latest(storage) == names[200]  # what a save goes on from


def test_truncated_missing_extra_and_swapped_files_are_reported(whole: Path) -> None:
    objects = catalog.read_manifest(Storage(whole.parent), whole.name).objects
    alone_in_file, packed = whole / objects["a"].file, whole / objects["b"].file
    (whole / "extra").touch()
    assert [(damage.file, damage.problem) for damage in verify(whole.parent)] == [
        ("extra", "it is not in the manifest")
    ]
    (whole / "extra").unlink()
    content = alone_in_file.read_bytes()
    alone_in_file.write_bytes(content[:-1])
    assert [damage.problem for damage in verify(whole.parent)] == [
        f"{MIN_FILE_BYTES - 1} bytes instead of {MIN_FILE_BYTES}"
    ]
    alone_in_file.write_bytes(content)
    record = objects["c"]
    mixed = bytearray(packed.read_bytes())
    mixed[record.at] ^= 1
    packed.write_bytes(mixed)
    assert [damage.tensors for damage in verify(whole.parent)] == [("b", "c")]
    packed.unlink()
    assert [damage.problem for damage in verify(whole.parent)] == ["it is missing"]
    (whole / manifest.NAME).unlink()
    assert [(damage.file, damage.problem) for damage in verify(whole.parent)] == [
        (manifest.NAME, "it is missing")
    ]


def test_checkpoint_under_another_steps_name_is_reported(whole: Path) -> None:
    shutil.move(str(whole), str(whole.parent / "step-000000000002"))
    assert [damage.problem for damage in verify(whole.parent, step=2)] == ["it is of step 1, not 2"]
    with pytest.raises(NoCheckpoint, match="no checkpoint of step 1: it has step 2"):
        verify(whole.parent, step=1)


def test_manifest_is_plain_json(whole: Path) -> None:
    document = json.loads((whole / manifest.NAME).read_text())
    assert (document["step"], document["world_size"], sorted(document["objects"])) == (
        1,
        1,
        ["a", "b", "c"],
    )


@pytest.mark.parametrize("name", ["../other", "/etc/passwd", ".."])
def test_manifest_with_escaping_paths_is_refused(name: str) -> None:
    content = manifest.dumps(manifest.Manifest(1, 1, 0, (manifest.FileEntry(name, 1, "0" * 64),)))
    with pytest.raises(CheckpointError, match="leads out of its folder"):
        manifest.loads(content, "manifest.json")


def test_only_leftovers_of_ended_writers_are_removed(tmp_path: Path) -> None:
    save(tmp_path, 1, {"a": b"1"})
    own = layout.temporary("step-000000000002")
    ended = own.replace(f"~{layout.writer(own).number}~", "~4194305~")  # type: ignore[union-attr]
    elsewhere = own.replace(layout.writer(own).host, "another-host")  # type: ignore[union-attr]
    for name in (own, ended, elsewhere):
        (tmp_path / name).mkdir()
    pruned = prune(tmp_path, keep=5)
    assert (pruned.leftovers, sorted(pruned.unknown)) == ((ended,), sorted((own, elsewhere)))
    assert names(tmp_path) == sorted(("copies", own, elsewhere, "latest", "step-000000000001"))


def test_prune_keeps_newest_every_kth_and_latest(tmp_path: Path) -> None:
    for step in (100, 150, 200, 250, 300, 50):
        save(tmp_path, step, {"a": b"%d" % step})
    assert prune(tmp_path, keep=1, every=100, dry_run=True).removed == (
        "step-000000000150",
        "step-000000000250",
    )
    prune(tmp_path, keep=1, every=100)
    assert list_steps(tmp_path) == [50, 100, 200, 300]
    with pytest.raises(ValueError, match="at least one"):
        prune(tmp_path, keep=0)


def test_prune_ignores_unreadable_checkpoints(
    tmp_path: Path,
) -> None:
    for step in (1, 2, 3, 4):
        save(tmp_path, step, {"a": b"%d" % step})
    (tmp_path / "step-000000000004" / manifest.NAME).write_bytes(b"{}")
    (tmp_path / "step-000000000001" / manifest.NAME).write_bytes(b"{}")
    pruned = prune(tmp_path, keep=2)
    assert (pruned.removed, pruned.unreadable) == (("step-000000000001",), ("step-000000000004",))
    assert list_steps(tmp_path) == [2, 3, 4]


def test_only_the_last_link_frees_bytes(tmp_path: Path) -> None:
    save(tmp_path, 1, {"a": big("a"), "b": big("b")})
    save(tmp_path, 2, {"a": big("a"), "b": big("c")})
    unshared = manifest_of(tmp_path, 1).objects["b"].file
    (tmp_path / "copy").hardlink_to(tmp_path / "step-000000000001" / unshared)
    storage = Storage(tmp_path)
    usages = {
        str(name): disk_usage.usage(storage, str(name)) for name in catalog.committed(storage)
    }
    sizes = {
        folder: [path.stat().st_size for path in (tmp_path / folder).iterdir()] for folder in usages
    }
    small = {
        folder: sum(size for size in sizes[folder] if size < MIN_FILE_BYTES) for folder in usages
    }
    assert disk_usage.total_bytes(usages.values()) == 3 * MIN_FILE_BYTES + sum(small.values())
    first, second = usages
    assert (
        disk_usage.freed_bytes(usages, [first]) == small[first]
    )  # a is in the other checkpoint, b outside
    assert disk_usage.freed_bytes(usages, [second]) == small[second] + MIN_FILE_BYTES
    assert disk_usage.freed_bytes(usages, [first, second]) == 2 * MIN_FILE_BYTES + sum(
        small.values()
    )


def test_replicated_items_are_written_once_and_evenly() -> None:
    def box(name: str, size: int) -> Box:
        return Box(name, [0], [size], [size], "torch.uint8", size)

    same = [box("a", 8), box("b", 5), box("c", 4), Box("o", [], [], [], OBJECT, 0)]
    writers = assign([same, same])
    assert writers == {("a", 0): 0, ("b", 0): 1, ("c", 0): 1, ("o",): 0}
    with pytest.raises(
        CheckpointError, match=r"a is \[9\] torch.uint8 on rank 1, but \[8\] torch.uint8 on rank 0"
    ):
        assign([[box("a", 8)], [box("a", 9)]])


def test_known_damaged_parent_file_is_rewritten(tmp_path: Path) -> None:
    save(tmp_path, 1, {"a": big("a"), "b": big("b")})
    folder = tmp_path / "step-000000000001"
    files_by_name = {
        name: folder / at.file
        for name, at in catalog.read_manifest(Storage(tmp_path), folder.name).objects.items()
    }
    files_by_name["a"].write_bytes(
        b"x" * MIN_FILE_BYTES
    )  # found by its hash, once it was looked at
    files_by_name["b"].write_bytes(big("b")[:-1])  # seen by its size, at once
    assert {damage.file for damage in verify(tmp_path)} == {
        path.name for path in files_by_name.values()
    }
    assert save(tmp_path, 2, {"a": big("a"), "b": big("b")}).written == 2 * MIN_FILE_BYTES
    assert verify(tmp_path, step=2) == []
    assert save(tmp_path, 3, {"a": big("a"), "b": big("b")}).linked == 2 * MIN_FILE_BYTES


def open_below(folder: Path) -> int:
    """How many files of this process are open there."""

    def target(descriptor: Path) -> str:
        try:
            return str(descriptor.readlink())
        except FileNotFoundError:  # the listing's own
            return ""

    return sum(
        target(descriptor).startswith(f"{folder}/")
        for descriptor in Path("/proc/self/fd").iterdir()
    )


@pytest.mark.parametrize("failing", [0, 1, 5, 52])
def test_few_files_are_open_and_all_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    monkeypatch.setattr(file, "MAX_UNSYNCED", 4)
    monkeypatch.setattr(file, "SYNCED_TOGETHER", 3)
    synced: list[str] = []
    most, lock = 0, threading.Lock()

    def counted(descriptor: int, sync: Callable[[int], None] = os.fsync) -> None:
        nonlocal most
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        if name.endswith(".distcp"):
            with lock:
                synced.append(name)
                most, number = max(most, open_below(tmp_path)), len(synced)
            if number == failing:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", counted)
    contents = {letter: big(letter) for letter in string.ascii_letters}
    if failing:
        with pytest.raises(NotCommitted, match="Input/output error"):
            save(tmp_path, 1, contents)
        assert names(tmp_path) == []
    else:
        committed = save(tmp_path, 1, contents)
        files = catalog.read_manifest(Storage(tmp_path), Path(committed.folder).name).files
        assert sorted(synced) == sorted(
            entry.name for entry in files if entry.name.endswith(".distcp")
        )
        assert 4 < most <= 4 + 3 + writer.WORKERS
    assert open_below(tmp_path) == 0


@pytest.mark.parametrize("failing_sync", [False, True])
def test_files_are_closed_when_closing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing_sync: bool
) -> None:
    """As a network file system's client may, once a sync has failed and before."""
    files = [os.open(tmp_path / name, os.O_WRONLY | os.O_CREAT) for name in "abcdef"]

    def refused(descriptor: int, close: Callable[[int], None] = os.close) -> None:
        close(descriptor)
        if descriptor in files[2:4]:
            raise OSError(errno.EDQUOT, "closing")

    def unsynced(descriptor: int) -> None:
        raise OSError(errno.EIO, "syncing")

    monkeypatch.setattr(os, "close", refused)
    if failing_sync:
        monkeypatch.setattr(os, "fsync", unsynced)
    with pytest.raises(OSError, match="syncing" if failing_sync else "closing"):
        file._for_all((os.fsync, os.close), files)
    assert open_below(tmp_path) == 0


def test_files_are_named_by_their_hashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    xxhash = pytest.importorskip("xxhash")

    def digits_of(step: int) -> list[int]:
        folder = tmp_path / f"step-{step:012}"
        digits = []
        for entry in catalog.read_manifest(Storage(tmp_path), folder.name).files:
            content = (folder / entry.name).read_bytes()
            quick = f"{xxhash.xxh128_hexdigest(content)}{zlib.crc32(content):08x}"
            assert entry.digest in (quick, hashlib.sha256(content).hexdigest())
            assert entry.name == f"{entry.digest}.distcp"
            digits.append(len(entry.digest))
        return digits

    save(tmp_path, 1, {"a": big("a"), "small": b"s", "tiny": b"t"})
    save(tmp_path, 2, {"a": big("a"), "small": b"s", "new": big("n")})
    assert digits_of(1) == [40] * 2 and digits_of(2) == [40] * 3
    monkeypatch.setattr(hashes, "XXH3_128", None)
    save(tmp_path, 3, {"a": big("b")})
    assert digits_of(3) == [64]


@pytest.mark.parametrize("first_has", [True, False])
def test_checkpoints_survive_installing_or_removing_xxhash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_has: bool
) -> None:
    """What was saved is read all the same; the first save after it writes everything again."""
    xxh3_128 = pytest.importorskip("xxhash").xxh3_128
    for step, has in ((1, first_has), (2, not first_has), (3, not first_has), (4, first_has)):
        monkeypatch.setattr(hashes, "XXH3_128", xxh3_128 if has else None)
        committed = save(tmp_path, step, {"a": big("a"), "b": big(str(step))})
        assert committed.written == MIN_FILE_BYTES * (1 if step == 3 else 2)
        assert [verify(tmp_path, step=earlier) for earlier in range(1, step + 1)] == [[]] * step


@pytest.mark.parametrize("has", [True, False])
def test_either_hash_detects_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has: bool
) -> None:
    xxh3_128 = pytest.importorskip("xxhash").xxh3_128
    committed = save(tmp_path, 1, {"a": big("a")})
    storage = Storage(tmp_path)
    content = catalog.read_manifest(storage, Path(committed.folder).name)
    file = Path(committed.folder) / content.files[0].name
    file.write_bytes(big("a")[:-1] + b"x")
    monkeypatch.setattr(hashes, "XXH3_128", xxh3_128 if has else None)
    [damage] = verification.check_files(
        storage, Path(committed.folder).name, content, content.files
    )
    assert damage.problem == f"its {'XXH128' if has else 'CRC-32'} is not the committed one"


def test_manifest_of_another_schema_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(manifest, "SCHEMA", 3)
        committed = save(tmp_path, 1, {"a": b"1"})
    with pytest.raises(errors.CheckpointError, match="has schema 3, this code reads 7"):
        catalog.read_manifest(Storage(tmp_path), Path(committed.folder).name)


@pytest.mark.parametrize("size", [MIN_FILE_BYTES, 1000])
def test_one_rotten_bit_damages_a_bounded_number_of_checkpoints(tmp_path: Path, size: int) -> None:
    """Frozen weights, linked from save to save: a file of their own, and a piece of a pack."""
    frozen = b"f" * size
    for step in range(1, 4):
        save(tmp_path, step, {"frozen": frozen, "trained": b"%d" % step * MIN_FILE_BYTES})
    folder = tmp_path / "step-000000000001"
    objects = catalog.read_manifest(Storage(tmp_path), folder.name).objects
    flip(folder / objects["frozen"].file)
    for step in range(4, 41):
        save(tmp_path, step, {"frozen": frozen, "trained": b"%d" % step * MIN_FILE_BYTES})
    damaged = [step for step in range(1, 41) if verify(tmp_path, step=step)]
    assert damaged[:3] == [1, 2, 3]
    assert damaged == list(range(1, len(damaged) + 1))
    assert MAX_LINKS // 2 <= len(damaged) <= MAX_LINKS + 1


def test_failed_save_does_not_clear_known_damage(tmp_path: Path) -> None:
    save(tmp_path, 1, {"a": big("a")})
    file_name = manifest_of(tmp_path, 1).objects["a"].file
    (tmp_path / "step-000000000001" / file_name).write_bytes(big("a")[:-1] + b"x")
    assert [damage.file for damage in verify(tmp_path)] == [file_name]

    def fail_late(doing: SaveProgress) -> None:
        if doing.written:
            raise ValueError("late")

    with pytest.raises(NotCommitted, match="late"):
        save(tmp_path, 2, {"a": big("a")}, progress=fail_late)
    assert save(tmp_path, 2, {"a": big("a")}).written == MIN_FILE_BYTES
    assert verify(tmp_path) == []
    assert save(tmp_path, 3, {"a": big("a")}).linked == MIN_FILE_BYTES


def test_different_steps_on_ranks_save_nothing(tmp_path: Path) -> None:
    errors = RankThreads(2).run(
        lambda ranks: save(tmp_path, 5 + ranks.rank, {f"{ranks.rank}": b"x"}, ranks)
    )
    assert [str(error) for error in errors] == [
        "nothing was saved: the ranks save different steps (5 on rank 0, 6 on rank 1)"
    ] * 2
    assert list_steps(tmp_path) == []


@pytest.mark.parametrize("step", [-1, True, 1.0, "4"])
def test_invalid_step_is_refused(step: Any) -> None:
    with pytest.raises(ValueError, match=f"^step={step!r}: it must be a whole number"):
        check_step(step)


def test_prune_keeps_the_last_commit_after_a_rollback(tmp_path: Path) -> None:
    for step in (1000, 1900, 2000, 1100, 1200, 1300):
        save(tmp_path, step, {"a": b"%d" % step})
    assert prune(tmp_path, keep=2).removed == (
        "step-000000001000",
        "step-000000001100",
        "step-000000001900",
        "step-000000002000",
    )
    assert list_steps(tmp_path) == [1200, 1300]


def test_errors_can_be_pickled(tmp_path: Path) -> None:
    failed = NotCommitted(
        3, collective.RankFailed((1, 2), 28, "No space left on device", "/x"), is_certain=False
    )
    for error in (errors.DamagedFile("/x/y", "it is missing", ("a",)), failed, failed.failure):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), vars(again).keys()) == (
            type(error),
            str(error),
            vars(error).keys(),
        )
    assert "as far as this rank can know" in str(failed)


def test_root_is_fixed_when_the_working_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    storage = Storage("deep/er")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    save(Path(storage.root), 1, {"a": b"1"})
    assert list_steps(tmp_path / "deep" / "er") == [1]


def test_slow_rank_is_not_taken_for_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exchanges go on while rank 0 publishes: far more of them than without."""
    beats: list[str] = []
    publish = Storage.commit

    def slowly(self: Storage, folder: str, step: int, content: bytes) -> str:
        before = len(beats)
        while len(beats) < before + 3:  # until the others were heard three times more
            threading.Event().wait(0.01)
        return publish(self, folder, step, content)

    monkeypatch.setattr(Storage, "commit", slowly)

    def counted(ranks: Ranks) -> Ranks:
        def exchange(name: str, payload: Any) -> list[Any]:
            beats.append(name)
            return ranks.exchange(name, payload)

        return Ranks(ranks.rank, ranks.world_size, exchange)

    commits = RankThreads(2).run(
        lambda ranks: save(tmp_path, 1, {f"{ranks.rank}": b"x"}, counted(ranks))
    )
    assert [Path(commit_of_rank.folder).name for commit_of_rank in commits] == [
        "step-000000000001"
    ] * 2


def test_metadata_is_in_the_manifest(tmp_path: Path) -> None:
    save(tmp_path, 1, {"a": b"1"}, metadata={"epoch": 3, "tags": ["x"]})
    save(tmp_path, 2, {"a": b"1"})
    assert metadata(tmp_path, step=1) == {"epoch": 3, "tags": ["x"]}
    assert metadata(tmp_path) == {}
    written = [json.loads((folder / manifest.NAME).read_text()) for folder in folders(tmp_path)]
    assert [document["metadata"] for document in written] == [{"epoch": 3, "tags": ["x"]}, {}]
    assert described(tmp_path) == {"a": (OBJECT, ())}
    with pytest.raises(NoCheckpoint):
        metadata(tmp_path, step=3)


def test_protected_steps_are_not_pruned(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4, 5):
        save(tmp_path, step, {"a": str(step).encode()})
    plan = retention.plan_pruning(Storage(tmp_path), 1, protected=(2, 9))
    assert plan.removed == tuple(f"step-{step:012d}" for step in (1, 3, 4))


def folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir())


def ignore(_: SaveProgress) -> None: ...
