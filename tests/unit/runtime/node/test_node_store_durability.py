"""What a node's store promises after a power failure, and of what pruning leaves."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from provision_runtime.node import activation, install
from provision_runtime.node import store as stores
from provision_runtime.node.store import Store
from tests.node_stores import NAME, RUN, PackedToy, pack_toy, receive, ship


def test_each_file_is_on_the_disk_before_its_name_and_the_name_before_what_follows(
    store: Store, toy: PackedToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The calls of a whole ship: a rename of bytes that are not on the disk is an empty file after
    a power failure, a rename that is not on the disk never happened."""
    events: list[tuple[str, tuple[int, int]]] = []
    fsync, replace = os.fsync, os.replace

    def record_fsync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        events.append(("sync", (status.st_dev, status.st_ino)))
        fsync(descriptor)

    def record_replace(source: str, target: str) -> None:
        status, directory = Path(source).lstat(), Path(target).parent.stat()
        if not stat.S_ISLNK(status.st_mode):  # a link has no bytes to sync
            events.append(("file", (status.st_dev, status.st_ino)))
        events.append(("name", (directory.st_dev, directory.st_ino)))
        replace(source, target)

    monkeypatch.setattr("os.fsync", record_fsync)
    monkeypatch.setattr("os.replace", record_replace)
    ship(store, toy)
    renamed = [position for position, event in enumerate(events) if event[0] == "name"]
    assert len(renamed) >= 5  # lease, sidecar, verified, image, installed, link
    for position, (kind, inode) in enumerate(events):
        if kind == "file":
            assert ("sync", inode) in events[:position]
        elif kind == "name":
            assert ("sync", inode) in events[position:]


def test_nothing_is_removed_from_a_store_that_other_nodes_use(store: Store, tmp_path: Path) -> None:
    toys = [pack_toy(tmp_path, str(number)) for number in range(5)]
    for toy in toys:
        receive(store, toy)
        install.install(store.path, NAME, toy.key, RUN)
        result = activation.activate(store.path, NAME, toy.key, RUN, is_shared=True)
        assert (result["removed"], result["in_use"]) == ([], [])
    assert stores.installed_keys(store, NAME) == sorted(toy.key for toy in toys)


def test_what_the_journal_does_not_know_is_never_removed(store: Store, tmp_path: Path) -> None:
    """Of a journal that was lost or cut off: it may be what jobs use."""
    first, *toys = [pack_toy(tmp_path, str(number)) for number in range(6)]
    ship(store, first)
    Path(store.journal).unlink()
    removed = [key for toy in toys for key in ship(store, toy)["removed"]]
    assert removed == [toys[0].key, toys[1].key]
    assert Path(store.environment(first.key), "bin", "python").exists()
