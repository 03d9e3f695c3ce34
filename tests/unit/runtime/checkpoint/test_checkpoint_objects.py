"""Checkpoints in a store of objects, without torch: fsspec's own memory:// is the store. With a server: tests/integration."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from provision_runtime.checkpoint import (
    CheckpointError,
    NotCommitted,
    catalog,
    latest,
    layout,
    list_steps,
    manifest,
    prune,
    verify,
)
from provision_runtime.checkpoint.backends import Backend, FileBackend, open_root
from provision_runtime.checkpoint.items import MIN_FILE_BYTES
from tests.checkpoints import big, save
from tests.rank_threads import RankThreads

memory = pytest.importorskip("fsspec.implementations.memory", reason="fsspec is not installed")
NUMBERS = itertools.count()
# One of a machine that nobody here can see.
ELSEWHERE = "another-host"


@pytest.fixture
def root() -> Iterator[str]:
    name = f"run{next(NUMBERS)}"
    yield f"memory://{name}/checkpoints"
    stored = memory.MemoryFileSystem.store
    for path in [path for path in stored if path.startswith(f"/{name}/")]:
        del stored[path]


def contents(root: str, folder: str) -> dict[str, bytes]:
    """What a reader gets."""
    backend = open_root(root)
    manifest_of_step = catalog.read_manifest(backend, folder)
    return {
        name: backend.read(folder, at.file)[at.at : at.at + at.size]
        for name, at in manifest_of_step.objects.items()
    }


def newest(root: str) -> dict[str, bytes]:
    folder = catalog.latest(open_root(root))
    assert folder is not None
    return contents(root, folder)


def objects(root: str) -> set[str]:
    start = "/" + root.partition("://")[2] + "/"
    return {path[len(start) :] for path in memory.MemoryFileSystem.store if path.startswith(start)}


def unfinished(root: str) -> list[str]:
    return [name for name in open_root(root).folders() if layout.parse(name) is None]


def test_two_ranks_make_one_checkpoint_and_nothing_else(root: str) -> None:
    shards = [{"zero": b"0" * 100}, {"one": big("1"), "empty": b""}]
    commits = RankThreads(2).run(lambda ranks: save(root, 7, shards[ranks.rank], ranks))
    assert {commit_of_rank.folder for commit_of_rank in commits} == set(open_root(root).folders())
    assert contents(root, commits[0].folder) == {**shards[0], **shards[1]}
    assert (list_steps(root), latest(root), verify(root)) == ([7], 7, [])
    listed = {
        f"{commits[0].folder}/{entry.name}"
        for entry in catalog.read_manifest(open_root(root), commits[0].folder).files
    }
    assert objects(root) == {"latest", f"{commits[0].folder}/{manifest.NAME}", *listed}


def test_folder_without_a_manifest_is_no_checkpoint(root: str) -> None:
    save(root, 1, {"a": b"1"})
    second = save(root, 2, {"a": b"2"})
    memory.MemoryFileSystem().rm_file(f"{root}/{second.folder}/{manifest.NAME}")
    assert (list_steps(root), latest(root), newest(root)) == ([1], 1, {"a": b"1"})
    prune(root, keep=1)
    assert not [path for path in objects(root) if path.startswith(second.folder)]


def test_folder_names_contain_step_generation_and_token() -> None:
    for folder in (
        layout.CheckpointName(42, 0),
        layout.CheckpointName(42, 3),
        layout.CheckpointName(42, 0, "0123456789ab"),
        layout.CheckpointName(10**13, 12, "f" * 12),
    ):
        assert layout.parse(str(folder)) == folder
        assert layout.target(layout.temporary(str(folder))) == str(folder)
    for name in (
        "step-000000000042-",
        "step-000000000042-xyz",
        "step-000000000042.0-0123456789ab",
        layout.temporary(layout.LATEST),
    ):
        assert layout.parse(name) is None
        assert layout.target(name) is None


def in_the_name_of(marker: str, **who: str) -> str:
    """The marker as another writer would have named it."""
    writer = layout.writer(marker)
    assert writer is not None
    for field, value in who.items():
        marker = marker.replace(f"~{getattr(writer, field)}~", f"~{value}~")
    return marker


def begun(root: str, step: int, **who: str) -> str:
    """A save that ended after its first file."""
    backend = open_root(root)
    marker = backend.begin(step)
    writer = in_the_name_of(marker, **who)
    store = memory.MemoryFileSystem()
    content = store.cat_file(f"{root}/{marker}")
    store.rm_file(f"{root}/{marker}")
    store.pipe_file(f"{root}/{writer}", content)
    backend.write(writer, "file", memoryview(b"content"))
    return writer


def test_only_leftovers_of_ended_writers_are_removed(root: str) -> None:
    save(root, 1, {"a": b"1"})
    own, ended, elsewhere = (
        begun(root, 2),
        begun(root, 2, number="4194305"),
        begun(root, 2, host=ELSEWHERE),
    )
    assert list_steps(root) == [1]
    pruned = prune(root, keep=5)
    assert (pruned.leftovers, sorted(pruned.unknown)) == ((ended,), sorted((own, elsewhere)))
    folders = {path.partition("/")[0] for path in objects(root) if "/" in path}
    assert {layout.target(own), layout.target(elsewhere)} < folders
    assert layout.target(ended) not in folders


def test_next_save_removes_leftovers_of_an_ended_writer(root: str) -> None:
    ended = begun(root, 1, number="4194305")
    committed = save(root, 1, {"a": b"1"})
    assert {path.partition("/")[0] for path in objects(root)} == {"latest", committed.folder}
    assert committed.folder != layout.target(ended)


def test_every_checkpoint_has_all_of_its_files(root: str) -> None:
    first = save(root, 1, {"a": big("a"), "b": big("b")})
    second = save(root, 2, {"a": big("a"), "b": big("c")})
    assert (second.progress.written, second.progress.linked) == (2 * MIN_FILE_BYTES, 0)
    assert prune(root, keep=1).removed == (first.folder,)
    assert (list_steps(root), verify(root)) == ([2], [])
    assert newest(root) == {"a": big("a"), "b": big("c")}
    folders = {path.partition("/")[0] for path in objects(root)}
    assert folders == {"copies", "latest", second.folder}


def test_newer_generation_replaces_the_older_one(root: str) -> None:
    folders = [save(root, 1, {"a": big("a"), "b": letter * 9}).folder for letter in (b"1", b"2")]
    steps = [layout.parse(folder) for folder in folders]
    assert [step.generation for step in steps if step is not None] == [0, 1]
    assert (open_root(root).folders(), verify(root)) == ([folders[1]], [])
    assert newest(root) == {"a": big("a"), "b": b"222222222"}
    assert {path.partition("/")[0] for path in objects(root)} == {"latest", folders[1]}


def test_what_a_save_writes_meanwhile_is_kept(root: str) -> None:
    save(root, 1, {"a": big("a")})

    def meanwhile(_: object) -> None:
        if 3 not in list_steps(root):
            save(root, 3, {"z": b"other"})
            prune(root, keep=1)

    save(root, 4, {"a": big("b"), "new": b"1"}, progress=meanwhile)
    assert newest(root) == {"a": big("b"), "new": b"1"}
    assert (list_steps(root), verify(root)) == ([3, 4], [])


def test_damaged_manifest_costs_no_other_checkpoint(root: str) -> None:
    damaged = save(root, 1, {"a": big("a")})
    save(root, 2, {"a": big("a")})
    memory.MemoryFileSystem().pipe_file(f"{root}/{damaged.folder}/{manifest.NAME}", b"{")
    open_root(root).remove(damaged.folder)
    assert (list_steps(root), verify(root), newest(root)) == ([2], [], {"a": big("a")})


def test_flipped_bits_are_reported_by_file_name(root: str) -> None:
    folder = save(root, 2, {"a": big("a"), "b": b"other"}).folder
    store = memory.MemoryFileSystem()
    names = [entry.name for entry in catalog.read_manifest(open_root(root), folder).files]
    for name in (*names, manifest.NAME):
        content = store.cat_file(f"{root}/{folder}/{name}")
        for bit in (0, 4 * len(content), 8 * len(content) - 1):
            flipped = bytearray(content)
            flipped[bit // 8] ^= 1 << bit % 8
            store.pipe_file(f"{root}/{folder}/{name}", bytes(flipped))
            damages = [(damage.folder, damage.file) for damage in verify(root, step=2)]
            assert damages == [(folder, name)]
        store.pipe_file(f"{root}/{folder}/{name}", content)
    assert verify(root) == []


REQUESTS = ("cat_file", "pipe_file", "rm_file", "info", "ls")


class Dark:
    """From one request on the store answers nothing, until the light is switched on again."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.left = sys.maxsize
        self.error: Callable[[], Exception] = lambda: OSError(5, "the store does not answer")
        for name in REQUESTS:
            patch.setattr(
                memory.MemoryFileSystem,
                name,
                self._counting(getattr(memory.MemoryFileSystem, name)),
            )

    def _counting(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*arguments: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise self.error()
            return real(*arguments, **options)

        return ask


def test_store_outage_leaves_old_or_new_checkpoint(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dark = Dark(monkeypatch)
    old, new = (
        {"a": big("a"), "b": big("b"), "c": b"old"},
        {"a": big("a"), "b": big("x"), "c": b"new"},
    )
    refused, went_well = 0, False
    for requests in range(200):
        place = f"{root}/{requests}"
        save(place, 1, old)
        dark.left, committed = requests, True
        try:
            save(place, 1, new)
        except NotCommitted:
            committed, refused = False, refused + 1
        went_well, dark.left = dark.left >= 0, sys.maxsize
        assert verify(place) == []
        assert newest(place) in ([new] if committed else [old, new])
        # What could not be cleared away then, the same process clears away with its next save.
        last = save(place, 2, {"a": big("a")})
        prune(place, keep=1)
        assert unfinished(place) == []
        assert {path.partition("/")[0] for path in objects(place) if "/" in path} == {
            "copies",
            last.folder,
        }
        if went_well:
            break
    assert went_well
    assert refused > 15


def test_store_errors_are_raised_on_all_ranks(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dark = Dark(monkeypatch)
    save(root, 1, {"a": b"old"})
    message = {
        "NoCredentials: Unable to locate credentials": (
            type("NoCredentials", (Exception,), {})("Unable to locate credentials"),
            5,
        ),
        "Access Denied: memory://": (PermissionError("Access Denied"), 13),
        "The specified bucket does not exist": (
            FileNotFoundError("The specified bucket does not exist"),
            2,
        ),
    }
    for expected_message, (error, code) in message.items():

        def fail(error: Exception = error) -> Exception:
            return error

        dark.error = fail

        def on_second(_: object) -> None:
            dark.left = 0

        errors = RankThreads(2).run(
            lambda ranks: save(root, 2, {f"{ranks.rank}": big("n")}, ranks, progress=on_second)
        )
        dark.left = sys.maxsize
        assert [type(error) for error in errors] == [NotCommitted] * 2
        assert expected_message in str(errors[0])
        assert (errors[0].errno, list_steps(root)) == (code, [1])


def test_two_jobs_saving_one_step_have_separate_folders(root: str) -> None:
    commits = RankThreads(2).run(
        lambda ranks: [save(root, 5, {"a": b"%d" % ranks.rank * count}) for count in range(1, 20)]
    )
    assert all(isinstance(commit_of_rank, list) for commit_of_rank in commits), commits
    assert verify(root) == []
    assert newest(root) in ({"a": b"0" * 19}, {"a": b"1" * 19})
    assert prune(root, keep=1).unknown == ()
    assert list_steps(root) == [5]


def test_unopenable_root_names_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        CheckpointError,
        match="nosuch://bucket/run: fsspec does not support nosuch://",
    ):
        open_root("nosuch://bucket/run")
    with pytest.raises(CheckpointError, match="chained"):
        open_root("simplecache::s3://bucket/run")
    with pytest.raises(TypeError, match="is a folder: it takes no deadlin_s"):
        open_root(tmp_path, {"deadlin_s": 1})
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(CheckpointError, match="s3://bucket/run: Install s3fs to access S3"):
        open_root("s3://bucket/run")
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(
        CheckpointError, match="memory:// needs the package fsspec: pip install fsspec"
    ):
        open_root("memory://run")


def test_all_spellings_of_a_folder_open_it(tmp_path: Path) -> None:
    for spelling in (tmp_path, str(tmp_path), f"file://{tmp_path}", f"local://{tmp_path}"):
        backend: Backend = open_root(spelling)
        assert isinstance(backend, FileBackend)
        assert backend.root == str(tmp_path)
