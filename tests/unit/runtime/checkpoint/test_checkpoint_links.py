"""Steps that an operator linked or mounted below the root, and steps that cannot be removed."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from provision_runtime.checkpoint import (
    CheckpointWarning,
    DamagedFile,
    catalog,
    latest,
    layout,
    list_steps,
    loader,
    prune,
    verify,
)
from provision_runtime.checkpoint.inspection import audit, inventory
from provision_runtime.checkpoint.storage import Storage
from provision_runtime.checkpoint.writer import ByteCount
from tests.checkpoints import big, manifest_of, save
from tests.conftest import ROOT

STEPS = {step: f"step-{step:012d}" for step in range(1, 10)}
needs_root = pytest.mark.root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "run"
    for step in (1, 2, 3, 4):
        save(root, step, {"frozen": big("f"), "step": b"%d" % step})
    return root


def archive(root: Path, step: int) -> Path:
    """Moves a step elsewhere, and links it."""
    target = root.parent / "archive" / STEPS[step]
    target.parent.mkdir(exist_ok=True)
    shutil.move(str(root / STEPS[step]), str(target))
    (root / STEPS[step]).symlink_to(target)
    return target


def temporaries(root: Path) -> list[str]:
    return [path.name for path in root.iterdir() if path.name.startswith(layout.TEMPORARY)]


def test_link_to_an_archived_step_is_a_step_and_stays(root: Path) -> None:
    target = archive(root, 1)
    assert list_steps(root) == [1, 2, 3, 4]
    assert verify(root, step=1) == []
    for _ in range(2):
        assert STEPS[1] not in prune(root, keep=1).removed
        assert (root / STEPS[1]).readlink() == target
    assert list_steps(root) == [1, 4]
    assert verify(root, step=1) == [] and temporaries(root) == []
    storage = Storage(root)
    assert [row.state for row in inventory.take_inventory(storage).checkpoints] == ["committed"] * 2
    assert audit.audit(storage, audit.ALL).is_whole
    assert catalog.choose(storage, 1, catalog.REFUSE) == [STEPS[1]]


def test_linked_steps_do_not_count_among_those_that_are_kept(root: Path) -> None:
    archive(root, 4)
    assert prune(root, keep=2).removed == (STEPS[1],)
    assert list_steps(root) == [2, 3, 4]
    assert latest(root) == 4
    # A save goes on from the linked one.
    assert save(root, 5, {"frozen": big("f")}).linked
    assert manifest_of(root, 5).parent == STEPS[4]


@pytest.mark.parametrize("kind", ["dangling", "file", "loop", "empty"])
def test_links_that_lead_to_no_step_stay_and_stop_nothing(root: Path, kind: str) -> None:
    link, target = root / STEPS[2], root.parent / "other"
    shutil.rmtree(link)
    if kind == "file":
        target.write_text("a file")
    if kind == "empty":
        target.mkdir()
    link.symlink_to(link if kind == "loop" else target)
    storage = Storage(root)
    rows = {row.folder: row.state for row in inventory.take_inventory(storage).checkpoints}
    assert rows.pop(STEPS[2]) in ("damaged", "unreadable")
    assert set(rows.values()) == {"committed"}
    verdicts = audit.audit(storage, audit.ALL).checkpoints
    assert [row.folder for row in verdicts if row.verdict != "whole"] == [STEPS[2]]
    for keep in (2, 1):
        prune(root, keep=keep)
        assert link.is_symlink()
    assert list_steps(root) == [2, 4]
    save(root, 5, {"frozen": big("f")})
    assert latest(root) == 5
    assert catalog.choose(storage, "latest", catalog.PREVIOUS)[0] == STEPS[5]


@pytest.mark.parametrize("name", ["best", "step-000000000002.1"])
def test_what_a_link_in_the_root_leads_to_stays(root: Path, name: str) -> None:
    (root / name).symlink_to(STEPS[2])
    prune(root, keep=1)
    assert (root / name).is_symlink() and (root / name / "manifest.json").exists()
    assert set(list_steps(root)) == {2, 4}
    assert verify(root, step=2) == []
    save(root, 2, {"frozen": big("g")})
    assert (root / name / "manifest.json").exists()


def test_link_under_the_number_of_another_step_is_not_taken_for_it(root: Path) -> None:
    (root / STEPS[9]).symlink_to(STEPS[3])
    assert [damage.problem for damage in verify(root, step=9)] == ["it is of step 3, not 9"]
    assert prune(root, keep=1).removed == (STEPS[1], STEPS[2])
    assert (root / STEPS[9]).is_symlink()
    assert latest(root) == 4


def test_links_on_the_way_to_the_root(root: Path, tmp_path: Path) -> None:
    (tmp_path / "parent").symlink_to(root.parent)
    linked = tmp_path / "parent" / "run"
    assert prune(linked, keep=2).removed == (STEPS[1], STEPS[2])
    save(linked, 5, {"frozen": big("f")})
    assert list_steps(root) == [3, 4, 5] and verify(linked) == []


@pytest.mark.parametrize("below", ["", "run"])
def test_root_below_a_link_that_leads_nowhere_is_no_first_start(tmp_path: Path, below: str) -> None:
    """Its file system may only be unmounted; training would begin again, and save elsewhere."""
    (tmp_path / "scratch").symlink_to(tmp_path / "unmounted")
    root = tmp_path / "scratch" / below
    with pytest.raises(OSError, match=r"a link to .*unmounted, which does not exist"):
        list_steps(root)
    with pytest.raises(Exception, match=r"a link to .*unmounted, which does not exist"):
        save(root, 1, {"a": b"1"})
    assert not (tmp_path / "unmounted").exists()


def test_latest_as_a_link_to_a_step_is_not_read(root: Path) -> None:
    (root / "latest").unlink()
    (root / "latest").symlink_to(STEPS[2])
    assert verify(root) == []
    assert catalog.choose(Storage(root), "latest", catalog.PREVIOUS)[0] == STEPS[4]
    prune(root, keep=1)
    assert list_steps(root) == [2, 4]
    save(root, 5, {"frozen": big("f")})
    assert latest(root) == 5 and not (root / "latest").is_symlink()


def test_damage_behind_a_link_is_not_written_over(root: Path) -> None:
    target = archive(root, 4)
    [file] = {entry.file for entry in manifest_of(root, 4).objects.values() if entry.size > 9}
    (target / file).unlink()
    content = manifest_of(root, 4)
    with pytest.raises(DamagedFile, match="it is missing"):
        loader.verify_files(Storage(root), STEPS[4], content, [file], ByteCount())
    assert not (target / file).exists()


# Steps that cannot be removed


def test_pruning_goes_on_with_others_and_says_so(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def refuse(source: os.PathLike[str], target: os.PathLike[str]) -> None:
        if Path(source).name == STEPS[2]:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(source))
        rename(source, target)

    monkeypatch.setattr(os, "rename", refuse)
    for removed in ((STEPS[1], STEPS[3]), ()):
        with pytest.warns(CheckpointWarning, match=f"{STEPS[2]} was not removed: .*busy"):
            pruned = prune(root, keep=1)
        assert pruned.removed == removed and len(pruned.problems) == 1
        assert list_steps(root) == [2, 4]
    monkeypatch.undo()
    # A step that could not be removed is no rest of a dead writer: the next save leaves it alone.
    save(root, 5, {"frozen": big("f")})
    assert list_steps(root) == [2, 4, 5]


def test_folder_that_cannot_be_emptied_does_not_stop_later_prunes(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = shutil.rmtree

    def refuse(path: str, **options: object) -> None:
        if STEPS[1] in path:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)
        remove(path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(shutil, "rmtree", refuse)
    for _ in range(2):
        with pytest.warns(CheckpointWarning, match="was not removed: .*not permitted"):
            pruned = prune(root, keep=1)
        assert pruned.leftovers == ()
        assert list_steps(root) == [4]
    monkeypatch.undo()
    assert prune(root, keep=1).problems == () and temporaries(root) == []


PRUNE = """
import json, sys, warnings
from provision_runtime import checkpoint
warnings.simplefilter("ignore", checkpoint.CheckpointWarning)
pruned = checkpoint.prune(sys.argv[1], keep=1)
print(json.dumps([pruned.removed, pruned.problems]))
"""


@needs_root
def test_read_only_step_of_an_ordinary_user_stays_visible() -> None:
    """As another user: root may remove anything. All modules are imported before."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for step in (1, 2, 3, 4):
            save(root, step, {"frozen": big("f"), "step": b"%d" % step})
        subprocess.run(["chown", "-R", "65533:65533", folder], check=True)
        (root / STEPS[2]).chmod(0o555)
        os.seteuid(65533)
        try:
            with pytest.warns(CheckpointWarning, match=f"{STEPS[2]} was not removed: .*denied"):
                pruned = prune(root, keep=1)
        finally:
            os.seteuid(0)
        assert (pruned.removed, len(pruned.problems)) == ((STEPS[1], STEPS[3]), 1)
        assert list_steps(root) == [2, 4] and temporaries(root) == []
        assert verify(root, step=2) == []


@pytest.mark.mounts
def test_mounted_step_stays(root: Path) -> None:
    script = f'mount -t tmpfs none "$2/{STEPS[2]}" && exec "$0" -c "$1" "$2"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, sys.executable, PRUNE, root],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert json.loads(done.stdout) == [[STEPS[1], STEPS[3]], []]
    assert list_steps(root) == [2, 4]


def test_backend_refuses_to_remove_links(root: Path) -> None:
    target = archive(root, 1)
    Storage(root).remove(STEPS[1])
    assert (root / STEPS[1]).readlink() == target and (target / "manifest.json").exists()
