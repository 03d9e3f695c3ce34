from __future__ import annotations

import json
from pathlib import Path

import pytest

from provision.inside import fs
from provision.inside.checkpoint import commit, manifest, read
from provision.inside.ranks import alone
from tests.table import Table

SHARDS = {0: {"rank0.bin": b"zero" * 100}, 1: {"rank1.bin": b"one" * 100, "more.bin": b""}}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_two_ranks_make_one_checkpoint_that_each_can_read(tmp_path: Path) -> None:
    folders = Table(2).run(lambda ranks: commit.save(tmp_path, 7, SHARDS[ranks.rank], ranks))
    assert folders == [tmp_path / "step-000000000007"] * 2
    assert names(tmp_path) == ["step-000000000007"]
    loaded = read.load(tmp_path, 7)
    assert loaded.manifest.world_size == 2
    assert {e.name: (e.rank, loaded.read(e.name)) for e in loaded.manifest.files} == {
        "rank0.bin": (0, b"zero" * 100),
        "rank1.bin": (1, b"one" * 100),
        "more.bin": (1, b""),
    }


def test_steps_are_listed_in_order_and_unfinished_ones_are_not(tmp_path: Path) -> None:
    for step in (20, 3):
        commit.save(tmp_path, step, {"a": b"1"}, alone())
    (tmp_path / ".step-000000000030.abc.tmp").mkdir()
    assert read.list_steps(tmp_path) == [3, 20]


def test_a_step_that_exists_is_refused_and_stays_as_it_was(tmp_path: Path) -> None:
    commit.save(tmp_path, 1, {"a": b"old"}, alone())
    errors = Table(2).run(lambda ranks: commit.save(tmp_path, 1, {f"{ranks.rank}": b"new"}, ranks))
    assert ["exists already" in str(error) for error in errors] == [True, True]
    assert read.load(tmp_path, 1).read("a") == b"old"
    assert names(tmp_path) == ["step-000000000001"]


@pytest.mark.parametrize("name", ["", "..", "a/b", "/etc/passwd", manifest.NAME, "a\0b"])
def test_one_rank_with_an_impossible_name_stops_all_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    shards = {0: {"fine": b"1"}, 1: {name: b"2"}}
    errors = Table(2).run(lambda ranks: commit.save(tmp_path, 1, shards[ranks.rank], ranks))
    assert all(isinstance(error, manifest.CheckpointError) for error in errors)
    assert ["rank 1" in str(error) for error in errors] == [True, True]
    assert names(tmp_path) == []


def test_two_ranks_with_one_file_name_are_refused(tmp_path: Path) -> None:
    errors = Table(2).run(lambda ranks: commit.save(tmp_path, 1, {"same": b"1"}, ranks))
    assert all(isinstance(error, manifest.CheckpointError) for error in errors)
    assert names(tmp_path) == []


def test_a_failing_manifest_leaves_nothing_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(fs, "write_synced", full)
    with pytest.raises(manifest.CheckpointError, match="No space left"):
        commit.save(tmp_path, 1, {}, alone())
    assert names(tmp_path) == []


@pytest.mark.parametrize("name", ["a.bin", "b.bin", manifest.NAME])
def test_every_flipped_bit_is_refused_by_the_name_of_its_file(tmp_path: Path, name: str) -> None:
    folder = commit.save(tmp_path, 1, {"a.bin": b"some bytes", "b.bin": b"others"}, alone())
    content = (folder / name).read_bytes()
    for bit in range(0, 8 * len(content), 3):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        (folder / name).write_bytes(damaged)
        with pytest.raises(manifest.CheckpointError, match=name):
            read.load(tmp_path, 1)
    (folder / name).write_bytes(content)
    assert read.load(tmp_path, 1).read("a.bin") == b"some bytes"


def test_truncated_missing_extra_and_swapped_files_are_refused(tmp_path: Path) -> None:
    folder = commit.save(tmp_path, 1, {"a": b"12345", "b": b"54321"}, alone())
    (folder / "extra").touch()
    with pytest.raises(manifest.DamagedFile, match="extra is damaged: it is not in the manifest"):
        read.load(tmp_path, 1)
    (folder / "extra").unlink()
    (folder / "a").write_bytes(b"1234")
    with pytest.raises(manifest.DamagedFile, match="a is damaged: 4 bytes instead of 5"):
        read.load(tmp_path, 1)
    (folder / "a").write_bytes(b"54321")
    with pytest.raises(manifest.DamagedFile, match="a is damaged: its SHA-256"):
        read.load(tmp_path, 1)
    (folder / "a").unlink()
    with pytest.raises(manifest.DamagedFile, match="a is damaged: it is missing"):
        read.load(tmp_path, 1)


def test_a_checkpoint_under_another_steps_name_is_refused(tmp_path: Path) -> None:
    commit.save(tmp_path, 1, {"a": b"1"}, alone()).rename(tmp_path / "step-000000000002")
    with pytest.raises(manifest.DamagedFile, match="of step 1, not 2"):
        read.load(tmp_path, 2)


def test_asking_for_a_file_that_is_not_there_lists_those_that_are(tmp_path: Path) -> None:
    commit.save(tmp_path, 1, {"a": b"1", "b": b"2"}, alone())
    with pytest.raises(manifest.CheckpointError, match="it holds a, b"):
        read.load(tmp_path, 1).read("c")


def test_the_manifest_is_json_that_needs_no_pickle(tmp_path: Path) -> None:
    folder = commit.save(tmp_path, 5, {"a": b"1"}, alone())
    document = json.loads((folder / manifest.NAME).read_text())
    assert (document["step"], document["world_size"], document["files"][0]["name"]) == (5, 1, "a")
