"""Folders alone: known damage, shared files, and what an older version left. Without torch: objects stand for whatever ranks save."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from provision_runtime.checkpoint import (
    CheckpointError,
    contents,
    list_steps,
    metadata,
    prune,
    save_async,
    verification,
    verify,
)
from provision_runtime.checkpoint import save as save_state
from provision_runtime.checkpoint.inspection import audit, inventory
from provision_runtime.checkpoint.items import MIN_FILE_BYTES
from provision_runtime.checkpoint.storage import Storage
from provision_runtime.comm.ranks import single_process
from tests.checkpoints import big, flip, manifest_of, save

OLD = Path(__file__).parents[3] / "data" / "checkpoint-schema-7"


def state(step: int) -> dict[str, bytes]:
    """Frozen values in a file of their own and in a pack, and trained ones."""
    small = {f"small{number}": b"%d" % number * 100 for number in range(9)}
    return {"frozen": big("f"), "trained": b"%08d" % step * (MIN_FILE_BYTES // 8), **small}


def test_a_url_is_refused_and_told_what_does_the_same(tmp_path: Path) -> None:
    for action in (save_state, save_async):
        with pytest.raises(CheckpointError, match=r"s3://bucket/run is a URL.*aws s3 sync.*mount"):
            action({}, "s3://bucket/run", step=1, ranks=single_process())
    for read in (contents, list_steps, verify):
        with pytest.raises(CheckpointError, match="memory://run is a URL"):
            read("memory://run")


def test_the_same_file_under_another_hash_is_read_again(tmp_path: Path) -> None:
    """Several checkpoints may have one file, and each says itself what it holds."""
    folder = Path(save(tmp_path, 1, {"a": b"1"}).folder).name
    content = manifest_of(tmp_path, 1)
    [entry] = content.files
    other = replace(entry, digest=entry.digest[::-1])
    known: verification.Known = {}
    for entries, is_whole in (([entry], True), ([other], False), ([entry], True)):
        damages = verification.check_files(
            Storage(tmp_path), folder, content, entries, checked=known
        )
        assert (damages == []) == is_whole
    assert len(known) == 2


def test_after_known_damage_one_save_links_nothing(tmp_path: Path) -> None:
    for step in (1, 2):
        save(tmp_path, step, state(step))
    frozen = manifest_of(tmp_path, 2).objects["frozen"].file
    flip(tmp_path / "step-000000000002" / frozen)
    assert [damage.file for damage in verify(tmp_path)] == [frozen]
    assert save(tmp_path, 3, state(3)).linked == 0
    assert save(tmp_path, 4, state(4)).linked >= MIN_FILE_BYTES
    assert verify(tmp_path) == []


def test_a_root_that_an_older_version_wrote_is_read_and_continued(tmp_path: Path) -> None:
    """Two kept steps of a CheckpointManager, saved with torch by the code before decision 0312."""
    root = tmp_path / "root"
    shutil.copytree(OLD, root)
    assert list_steps(root) == [2, 3] and metadata(root) == {"metrics": {"loss": 1 / 3}}
    assert contents(root)["model.weight"] == ("torch.float32", (2, 3))
    assert audit.audit(Storage(root), audit.ALL).is_whole
    assert [row.state for row in inventory.take_inventory(Storage(root)).checkpoints] == [
        "committed"
    ] * 2
    pack = root / "step-000000000003" / manifest_of(root, 3).objects["epoch"].file
    flip(pack)
    assert [damage.file for damage in verify(root)] == [pack.name]
    save(root, 4, {"a": b"1"})
    assert prune(root, keep=1).removed == ("step-000000000002", "step-000000000003")
    assert list_steps(root) == [4]
    names = {entry.name for entry in manifest_of(root, 4).files}
    assert names <= {path.name for path in (root / "copies").iterdir()}
