"""The store of environments on a node: receiving, verifying, installing, activating, pruning."""

from __future__ import annotations

import errno
import grp
import json
import os
import pwd
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from provision.cluster.program import node_command, node_program
from provision.workflow.ship.probe import probe_script
from provision_runtime.node import (
    activation,
    install,
    registry_image,
    store_distrust,
    store_status,
    transfer,
    zstd,
)
from provision_runtime.node import store as stores
from provision_runtime.node.errors import NodeError
from provision_runtime.node.program import MARK
from provision_runtime.node.store import Store
from tests.node_stores import NAME, RUN, PackedToy, pack_toy, receive, ship

OTHER_RUN = {**RUN, "id": "run-2", "source": "desktop:1000:/data", "by": "bob@desktop"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


@pytest.fixture
def toy(tmp_path: Path) -> PackedToy:
    return pack_toy(tmp_path, "1")


def status(store: Store, toy: PackedToy) -> dict[str, Any]:
    return store_status.status(store.path, toy.pack, RUN)


def listing(store: Store, folder: str) -> list[str]:
    return [path.name for path in Path(store.path, folder).iterdir()]


def test_status_of_a_path_that_does_not_exist_changes_nothing(store: Store, toy: PackedToy) -> None:
    answer = status(store, toy)
    assert (answer["active"], answer["verified"], answer["installed"]) == (None, False, None)
    assert answer["received"] == 0
    assert not Path(store.path).exists()


def test_an_image_that_was_cut_off_is_continued_and_then_verified(
    store: Store, toy: PackedToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NodeError) as error:
        receive(store, toy, monkeypatch, toy.image[:100])
    assert error.value.reason == "cut-off"
    assert status(store, toy)["received"] == 100
    assert not status(store, toy)["verified"]
    assert receive(store, toy, monkeypatch, offset=100)["received"] == len(toy.image) - 100
    assert status(store, toy)["verified"]
    assert listing(store, "staging") == [f"{NAME}.lease"]


def test_wrong_bytes_never_reach_the_images_and_the_next_transfer_begins_anew(
    store: Store, toy: PackedToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = bytes([toy.image[0] ^ 1]) + toy.image[1:]
    with pytest.raises(NodeError) as error:
        receive(store, toy, monkeypatch, wrong)
    assert error.value.reason == "wrong-bytes"
    assert listing(store, "images") == []
    assert status(store, toy)["received"] == 0


def test_bytes_that_arrived_without_us_are_verified_too(store: Store, toy: PackedToy) -> None:
    Path(store.path, "staging").mkdir(parents=True)
    Path(store.part(toy.parsed)).write_bytes(toy.image)
    transfer.verify(store.path, toy.pack, toy.pack, RUN)
    assert status(store, toy)["verified"]


def test_an_image_that_was_copied_with_the_whole_store_is_verified_in_place(
    store: Store, toy: PackedToy
) -> None:
    Path(store.path, "images").mkdir(parents=True)
    Path(store.image(toy.parsed)).write_bytes(toy.image)
    assert status(store, toy)["has_image"]
    transfer.verify(store.path, toy.pack, toy.pack, RUN)
    assert status(store, toy)["verified"]


def test_an_image_that_changed_after_its_verification_is_not_verified(
    store: Store, toy: PackedToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive(store, toy, monkeypatch)
    with Path(store.image(toy.parsed)).open("r+b") as file:
        file.write(b"other")
    os.utime(store.image(toy.parsed), ns=(0, 0))
    assert not status(store, toy)["verified"]
    with pytest.raises(NodeError) as error:
        install.install(store.path, NAME, toy.key, RUN)
    assert error.value.reason == "not-verified"


def test_a_tree_is_unpacked_checked_and_started(
    store: Store, toy: PackedToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive(store, toy, monkeypatch)
    assert install.install(store.path, NAME, toy.key, RUN) == {"way": "tree", "is_new": True}
    assert install.install(store.path, NAME, toy.key, RUN) == {"way": "tree", "is_new": False}
    assert Path(store.environment(toy.key), "version").read_text() == "1" * 1000


def test_an_image_whose_files_are_not_those_packed_is_refused(
    store: Store, toy: PackedToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive(store, PackedToy(pack={**toy.pack, "root": "0" * 64}, image=toy.image), monkeypatch)
    with pytest.raises(NodeError) as error:
        install.install(store.path, NAME, toy.key, RUN)
    assert error.value.reason == "wrong-bytes"
    assert listing(store, "envs") == []


def test_an_environment_whose_python_does_not_start_is_taken_away(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = "libc.so.6: version GLIBC_2.99 not found"
    toy = pack_toy(tmp_path, "1", python=f'#!/bin/sh\necho "{message}" >&2; exit 1\n')
    receive(store, toy, monkeypatch)
    with pytest.raises(NodeError, match="GLIBC_2") as error:
        install.install(store.path, NAME, toy.key, RUN)
    assert error.value.reason == "does-not-start"
    assert listing(store, "envs") == []


def test_libzstd_decompresses_what_zstd_does(tmp_path: Path) -> None:
    """Larger than its buffers, and well compressible, so that much output comes of little input."""
    library = zstd.load_library()
    if library is None:
        pytest.skip("this machine has no libzstd")
    content = b"0" * 5_000_000 + os.urandom(3_000_000) + b"end"
    (tmp_path / "image").write_bytes(zstandard.compress(content))
    with (tmp_path / "plain").open("wb") as file:
        zstd.decompress(library, str(tmp_path / "image"), file.fileno())
    assert (tmp_path / "plain").read_bytes() == content
    (tmp_path / "image").write_bytes(b"not zstd")
    with (tmp_path / "plain").open("wb") as file, pytest.raises(NodeError):
        zstd.decompress(library, str(tmp_path / "image"), file.fileno())


def test_activation_needs_an_installed_environment(
    store: Store, toy: PackedToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive(store, toy, monkeypatch)
    with pytest.raises(NodeError) as error:
        activation.activate(store.path, NAME, toy.key, RUN)
    assert error.value.reason == "not-installed"
    assert activation.history(store.path, NAME)["active"] is None


def test_status_says_that_an_environment_is_active(
    store: Store, toy: PackedToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship(store, toy, monkeypatch)
    answer = status(store, toy)
    assert (answer["active"], answer["verified"], answer["installed"]) == (toy.key, True, "tree")
    assert Path(store.link(NAME)).readlink() == Path("envs", toy.key)


def test_a_path_of_that_name_that_is_no_link_is_never_replaced(
    store: Store, toy: PackedToy
) -> None:
    Path(store.link(NAME)).mkdir(parents=True)
    with pytest.raises(NodeError) as error:
        status(store, toy)
    assert error.value.reason == "not-ours"


def test_the_last_three_are_kept_and_one_that_is_staged(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toys = [pack_toy(tmp_path, str(number)) for number in range(5)]
    receive(store, toys[4], monkeypatch)
    install.install(store.path, NAME, toys[4].key, RUN)
    results = [ship(store, toy, monkeypatch) for toy in toys[:4]]
    assert [result["removed"] for result in results] == [[], [], [], [toys[0].key]]
    assert stores.installed_keys(store, NAME) == sorted(toy.key for toy in toys[1:])
    assert not Path(store.image(toys[0].parsed)).exists()
    assert not Path(store.environment(toys[0].key)).exists()


def test_what_a_process_uses_is_not_removed(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toys = [pack_toy(tmp_path, str(number)) for number in range(4)]
    ship(store, toys[0], monkeypatch)
    job = subprocess.Popen(["sleep", "60"], cwd=store.environment(toys[0].key))
    try:
        results = [ship(store, toy, monkeypatch) for toy in toys[1:]]
        assert results[-1]["removed"] == []
        assert results[-1]["in_use"] == [toys[0].key]
    finally:
        job.kill()
        job.wait()
    assert activation.activate(store.path, NAME, toys[3].key, RUN)["removed"] == [toys[0].key]


def test_what_a_process_uses_is_not_removed_from_a_store_behind_a_link(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(store.path).mkdir()
    (tmp_path / "link").symlink_to(store.path)
    linked = Store(str(tmp_path / "link"))
    toy = pack_toy(tmp_path, "1")
    ship(linked, toy, monkeypatch)
    job = subprocess.Popen(["sleep", "60"], cwd=linked.environment(toy.key))
    try:
        with pytest.raises(NodeError) as error:
            install.remove_environment(linked, toy.key)
        assert error.value.reason == "in-use"
    finally:
        job.kill()
        job.wait()
    install.remove_environment(linked, toy.key)


def test_rollback_goes_to_the_one_before_and_back_again(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (pack_toy(tmp_path, version) for version in "12")
    ship(store, first, monkeypatch)
    assert activation.history(store.path, NAME)["previous"] is None
    ship(store, second, monkeypatch)
    assert activation.history(store.path, NAME)["previous"] == first.key
    activation.activate(store.path, NAME, first.key, RUN)
    assert activation.history(store.path, NAME) == {
        "active": first.key,
        "previous": second.key,
        "installed": sorted([first.key, second.key]),
    }


def test_a_run_from_elsewhere_is_refused_until_the_lease_is_old(
    store: Store, toy: PackedToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive(store, toy, monkeypatch)
    with pytest.raises(NodeError, match="ann@laptop is shipping toy here") as error:
        install.install(store.path, NAME, toy.key, OTHER_RUN)
    assert error.value.reason == "in-use"
    lease = stores.read_json(store.lease(NAME))
    assert lease is not None
    stores.write_json(store.lease(NAME), {**lease, "at": lease["at"] - stores.LEASE_S})
    install.install(store.path, NAME, toy.key, OTHER_RUN)


def test_a_later_run_from_the_same_place_takes_the_lease(
    store: Store, toy: PackedToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive(store, toy, monkeypatch)
    install.install(store.path, NAME, toy.key, {**RUN, "id": "run-3"})
    stores.release(store.path, NAME, RUN)
    assert Path(store.lease(NAME)).exists()
    stores.release(store.path, NAME, {**RUN, "id": "run-3"})
    assert not Path(store.lease(NAME)).exists()


def test_a_lock_that_is_held_is_waited_for_and_then_reported(
    store: Store, toy: PackedToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "LOCK_WAIT_S", 0.0)
    with stores.locked(store, NAME, RUN), pytest.raises(NodeError, match="ann@laptop") as error:
        receive(store, toy, monkeypatch)
    assert error.value.reason == "in-use"


def test_a_line_of_the_journal_that_was_cut_off_is_skipped(
    store: Store, toy: PackedToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship(store, toy, monkeypatch)
    with Path(store.journal).open("a") as file:
        file.write('{"event": "activated", "name": "toy", "key"')
    assert [event["event"] for event in stores.read_journal(store, NAME)] == [
        "verified",
        "installed",
        "activated",
    ]


def serve_in_thread(
    store: Store, toy: PackedToy, port: int, tokens: list[str], idle_s: float = 20
) -> tuple[threading.Thread, dict[str, object]]:
    answer: dict[str, object] = {}

    def run() -> None:
        try:
            answer.update(transfer.serve(store.path, toy.pack, port, tokens, idle_s))
        except NodeError as error:
            answer["reason"] = error.reason

    thread = threading.Thread(target=run)
    thread.start()
    return thread, answer


def free_port() -> int:
    with socket.create_server(("", 0)) as listener:
        return int(listener.getsockname()[1])


def test_a_node_fetches_from_another_and_goes_on_where_it_was_cut_off(
    store: Store, toy: PackedToy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive(store, toy, monkeypatch)
    other = Store(str(tmp_path / "other"))
    with pytest.raises(NodeError):
        receive(other, toy, monkeypatch, toy.image[:50])
    port = free_port()
    thread, answer = serve_in_thread(store, toy, port, ["secret"])
    server = {"node": "n1", "addresses": ["127.0.0.1"], "port": port}
    result = transfer.fetch(other.path, toy.pack, toy.pack, RUN, server, "secret")
    thread.join()
    assert result == {"received": len(toy.image) - 50, "source": "n1"}
    assert answer == {"sent": len(toy.image) - 50, "not_served": 0}
    assert status(other, toy)["verified"]


def test_a_server_gives_nothing_without_its_token(
    store: Store, toy: PackedToy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive(store, toy, monkeypatch)
    port = free_port()
    thread, answer = serve_in_thread(store, toy, port, ["secret"], idle_s=0.5)
    server = {"node": "n1", "addresses": ["127.0.0.1"], "port": port}
    with pytest.raises(NodeError) as error:
        transfer.fetch(str(tmp_path / "other"), toy.pack, toy.pack, RUN, server, "guess")
    thread.join()
    assert error.value.reason == "peer-failed"
    assert answer == {"sent": 0, "not_served": 1}


def test_a_server_that_is_not_there_is_named(
    toy: PackedToy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "CONNECT_S", 0.0)
    server = {"node": "n1", "addresses": ["127.0.0.1"], "port": free_port()}
    with pytest.raises(NodeError, match="n1 at 127") as error:
        transfer.fetch(str(tmp_path / "other"), toy.pack, toy.pack, RUN, server, "secret")
    assert error.value.reason == "peer-unreachable"


def test_only_a_verified_image_is_served(store: Store, toy: PackedToy) -> None:
    with pytest.raises(NodeError) as error:
        transfer.serve(store.path, toy.pack, free_port(), ["secret"], 1)
    assert error.value.reason == "not-verified"


def test_a_port_that_is_taken_is_said(
    store: Store, toy: PackedToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive(store, toy, monkeypatch)
    with socket.create_server(("", 0)) as listener:
        port = int(listener.getsockname()[1])
        with pytest.raises(NodeError) as error:
            transfer.serve(store.path, toy.pack, port, ["secret"], 1)
    assert error.value.reason == "port-in-use"


@pytest.mark.parametrize(
    "place",
    [
        "lock",
        "journal.jsonl",
        f"staging/{NAME}.lease.new",
        f"staging/{NAME}.link",
        "staging/PART",
        "images/KEY.json.new",
        "images/KEY.verified.new",
        "envs/KEY.installed.new",
    ],
)
def test_links_in_the_place_of_our_files_are_not_written_through(
    store: Store, toy: PackedToy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("years")
    part = Path(store.part(toy.parsed)).name
    link = Path(store.path, place.replace("KEY", toy.key).replace("PART", part))
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(victim)
    if place in ("lock", "journal.jsonl", "staging/PART"):
        with pytest.raises((NodeError, OSError)) as error:
            ship(store, toy, monkeypatch)
        if isinstance(error.value, OSError):
            assert error.value.errno == errno.ELOOP
    else:
        ship(store, toy, monkeypatch)
    assert victim.read_text() == "years"


def test_an_image_of_a_registry_is_not_recorded_through_a_link(
    store: Store, tmp_path: Path
) -> None:
    (tmp_path / "victim").write_text("years")
    staged = Path(store.path, "staging", f"{NAME}.image")
    staged.parent.mkdir(parents=True)
    staged.symlink_to(tmp_path / "victim")
    registry_image.activate(store.path, NAME, "lab/toy@sha256:00", RUN)
    assert (tmp_path / "victim").read_text() == "years"
    assert Path(store.path, f"{NAME}.image").read_text() == "lab/toy@sha256:00\n"


@pytest.mark.parametrize("place", ["envs/KEY", "envs/.KEY.unpacking", "envs/.KEY.removing"])
def test_links_in_the_place_of_environments_are_removed_and_not_followed(
    store: Store, toy: PackedToy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    victim = tmp_path / "victim"
    (victim / "bin").mkdir(parents=True)
    (victim / "thesis.tex").write_text("years")
    link = Path(store.path, place.replace("KEY", toy.key))
    link.parent.mkdir(parents=True)
    link.symlink_to(victim)
    ship(store, toy, monkeypatch)
    install.remove_environment(store, toy.key)
    assert (victim / "thesis.tex").read_text() == "years"
    assert not link.is_symlink()


def test_a_link_to_another_file_system_is_no_mount(store: Store, toy: PackedToy) -> None:
    """Root would unmount what it names."""
    directory = Path(store.environment(toy.key))
    directory.parent.mkdir(parents=True)
    directory.symlink_to("/proc")
    assert not stores.is_mounted(str(directory))


def test_a_folder_where_other_nodes_have_mounts_stays_where_a_mount_is_refused(
    store: Store, toy: PackedToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a shared store: the mounts of the others would go with the folder."""
    receive(store, toy, monkeypatch)
    Path(store.environment(toy.key)).mkdir(parents=True)
    record = {"sha256": toy.pack["sha256"], "way": "fuse"}
    stores.write_json(store.installed(toy.key), record)
    inode = Path(store.environment(toy.key)).stat().st_ino
    monkeypatch.setattr(install, "ways", lambda _: ["kernel", "fuse"])
    monkeypatch.setattr(install, "fuse_command", lambda: "squashfuse")
    monkeypatch.setattr(install, "_run", lambda *_: (1, "permission denied"))
    with pytest.raises(NodeError) as error:
        install.attach(store.path, NAME, toy.key, active=False, wait_s=0.0)
    assert error.value.reason == "no-way"
    with pytest.raises(NodeError):
        install.install(store.path, NAME, toy.key, RUN)
    assert Path(store.environment(toy.key)).stat().st_ino == inode


@pytest.mark.parametrize("folder", ["", "images", "staging", "envs"])
def test_a_store_that_every_user_may_write_to_is_refused(
    store: Store, toy: PackedToy, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    ship(store, toy, monkeypatch)
    Path(store.path, folder).chmod(0o1777)
    with pytest.raises(NodeError, match=r"every user may write to .* \(mode 1777\)") as error:
        activation.activate(store.path, NAME, toy.key, RUN)
    assert error.value.reason == "unsafe-store"
    with pytest.raises(NodeError, match="every user may write"):
        install.attach(store.path, NAME, toy.key, True, 0.0)


@pytest.mark.root
def test_a_store_of_another_user_is_refused(
    store: Store, toy: PackedToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship(store, toy, monkeypatch)
    os.chown(Path(store.path, "envs"), 12345, -1)
    with pytest.raises(NodeError, match="envs belongs to the user 12345"):
        activation.activate(store.path, NAME, toy.key, RUN)


STRANGER = 65533


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users may enter."""
    with tempfile.TemporaryDirectory(prefix="store-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def group_may_write(store: Path) -> None:
    os.chown(store, -1, 100)
    store.chmod(0o2775)


def parent_is_not_sticky(store: Path) -> None:
    store.parent.chmod(0o777)


def stranger_made_the_link(store: Path) -> None:
    real = store.rename(store.parent / "real")
    store.symlink_to(real)
    os.lchown(store, STRANGER, STRANGER)


def nobody_owns_it(store: Path) -> None:
    os.chown(store, 65534, 65534)


def stranger_made_the_tree(store: Path) -> None:
    [tree] = [path for path in (store / "envs").iterdir() if path.is_dir()]
    os.chown(tree, STRANGER, STRANGER)


def stranger_changed_a_file_of_the_tree(store: Path) -> None:
    [tree] = [path for path in (store / "envs").iterdir() if path.is_dir()]
    os.chown(tree / "version", STRANGER, STRANGER)


def list_lets_a_user_write(store: Path) -> None:
    entries = ((1, 7, NO_ID), (2, 7, STRANGER), (4, 5, NO_ID), (16, 7, NO_ID), (32, 5, NO_ID))
    data = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(store / "envs", "system.posix_acl_access", data)
    except OSError:
        pytest.skip("this file system has no access lists")


def stranger_planted_a_link(store: Path) -> None:
    planted = store / "staging" / f"{NAME}.lease"
    planted.unlink(missing_ok=True)
    planted.symlink_to("/etc/passwd")
    os.lchown(planted, STRANGER, STRANGER)


def stranger_planted_a_folder(store: Path) -> None:
    (store / "staging").rename(store / "old")
    (store / "staging").symlink_to("/tmp")
    os.lchown(store / "staging", STRANGER, STRANGER)


def stranger_made_the_image(store: Path) -> None:
    [image] = (store / "images").glob("*.tar.zst")
    os.chown(image, STRANGER, STRANGER)


def stranger_made_the_record(store: Path) -> None:
    [record] = (store / "envs").glob("*.installed")
    os.chown(record, STRANGER, STRANGER)


def stranger_activated_another(store: Path) -> None:
    os.lchown(store / NAME, STRANGER, STRANGER)


NO_ID = 0xFFFFFFFF
UNSAFE = (
    group_may_write,
    parent_is_not_sticky,
    stranger_made_the_link,
    nobody_owns_it,
    stranger_made_the_tree,
    stranger_changed_a_file_of_the_tree,
    list_lets_a_user_write,
    stranger_planted_a_link,
    stranger_planted_a_folder,
    stranger_made_the_image,
    stranger_made_the_record,
    stranger_activated_another,
)


@pytest.mark.root
@pytest.mark.parametrize("attack", UNSAFE, ids=lambda attack: attack.__name__)
def test_where_a_stranger_has_a_hand_nothing_runs_and_nothing_is_written(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch, attack: Callable[[Path], None]
) -> None:
    ran = open_folder / "ran"
    toy = pack_toy(open_folder, "1", python=f"#!/bin/sh\ntouch {ran}\necho 3.11.7\n")
    store = Store(str(open_folder / "opt" / "store"))
    ship(store, toy, monkeypatch)
    ran.unlink()
    attack(Path(store.path))
    before = {path: path.lstat().st_mtime_ns for path in (open_folder / "opt").rglob("*")}
    actions: dict[str, Callable[[], object]] = {
        "install": lambda: install.install(store.path, NAME, toy.key, RUN),
        "attach": lambda: install.attach(store.path, NAME, toy.key, False, 0.0, RUN),
    }
    if attack is not stranger_changed_a_file_of_the_tree:  # which only reads all files
        actions |= {
            "status": lambda: status(store, toy),
            "receive": lambda: receive(store, toy, monkeypatch),
            "verify": lambda: transfer.verify(store.path, toy.pack, toy.pack, RUN),
            "serve": lambda: transfer.serve(
                store.path, toy.pack, free_port(), ["secret"], 0.1, RUN
            ),
            "activate": lambda: activation.activate(store.path, NAME, toy.key, RUN),
            "distrust": lambda: store_distrust.distrust(store.path, NAME, toy.key, RUN),
            "release": lambda: stores.release(store.path, NAME, RUN),
            "image": lambda: registry_image.activate(store.path, NAME, "lab/toy@sha256:0", RUN),
        }
    for name, action in actions.items():
        with pytest.raises(NodeError) as error:
            action()
        assert error.value.reason == "unsafe-store", name
    assert not ran.exists()
    if attack is stranger_changed_a_file_of_the_tree:
        return  # install has its lease
    assert {path: path.lstat().st_mtime_ns for path in (open_folder / "opt").rglob("*")} == before


@pytest.mark.root
@pytest.mark.parametrize("place", ["store", "store/envs", "parent"])
def test_a_link_that_waits_for_the_store_is_not_followed(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Root would make its folders where the link leads."""
    (open_folder / "victim").mkdir(mode=0o700)
    sticky = open_folder / "scratch"
    sticky.mkdir()
    sticky.chmod(0o1777)
    path = sticky / ("parent/store" if place == "parent" else "store")
    link = sticky / place
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(open_folder / "victim")
    os.lchown(link, STRANGER, STRANGER)
    with pytest.raises(NodeError) as error:
        receive(Store(str(path)), pack_toy(open_folder, "1"), monkeypatch)
    assert error.value.reason == "unsafe-store"
    assert list((open_folder / "victim").iterdir()) == []
    assert (open_folder / "victim").stat().st_mode & 0o7777 == 0o700


@pytest.mark.parametrize("place", ["lock", "journal.jsonl", "staging/PART"])
def test_a_second_name_of_another_file_is_not_written_through(
    store: Store, toy: PackedToy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("years")
    name = Path(store.path, place.replace("PART", Path(store.part(toy.parsed)).name))
    name.parent.mkdir(parents=True, exist_ok=True)
    name.hardlink_to(victim)
    with pytest.raises(NodeError) as error:
        ship(store, toy, monkeypatch)
    assert error.value.reason == "not-ours"
    assert victim.read_text() == "years"


def test_a_pipe_in_the_place_of_the_journal_does_not_wait(
    store: Store, toy: PackedToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(store.path).mkdir()
    os.mkfifo(store.lock)
    with pytest.raises(NodeError) as error:
        ship(store, toy, monkeypatch)
    assert error.value.reason == "not-ours"


GROUP = "games"  # every Linux has it, and a user of that name in it


@pytest.mark.root
def test_a_lab_may_trust_the_members_of_a_group(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them made the store; what we make in it, the others may change."""
    gid, uid = grp.getgrnam(GROUP).gr_gid, pwd.getpwnam(GROUP).pw_uid
    path = open_folder / "store"
    path.mkdir()
    os.chown(path, uid, gid)
    path.chmod(0o2775)
    toy = pack_toy(open_folder, "1")
    with pytest.raises(NodeError) as error:
        receive(Store(str(path)), toy, monkeypatch)
    assert error.value.reason == "unsafe-store"
    run = {**RUN, "readers": "", "trusted_group": GROUP}
    receive(Store(str(path)), toy, monkeypatch, run=run)
    assert install.install(str(path), NAME, toy.key, run)["way"] == "tree"
    activation.activate(str(path), NAME, toy.key, run)
    for name in ("", "envs", "images", "staging"):
        status = (path / name).stat()
        assert (status.st_gid, status.st_mode & 0o7777) == (gid, 0o2775)
    for name in ("lock", "journal.jsonl"):
        status = (path / name).stat()
        assert (status.st_gid, status.st_mode & 0o7777) == (gid, 0o664)
    os.lchown(path / NAME, STRANGER, -1)
    with pytest.raises(NodeError):
        activation.activate(str(path), NAME, toy.key, run)


def probe(store: Store, toy: PackedToy, readers: str = "") -> bool:
    """Whether the shell says that nothing is to be done."""
    script = probe_script(store.path, toy.pack, stores.SUFFIXES["tar"], readers)
    result = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
    answer = json.loads(result.stdout.partition(MARK)[2])
    return bool(answer["result"]["active"])


@pytest.mark.root
@pytest.mark.parametrize(
    "attack",
    [attack for attack in UNSAFE if attack is not stranger_changed_a_file_of_the_tree],
    ids=lambda attack: attack.__name__,
)
def test_the_shell_leaves_what_a_stranger_may_change_to_the_program(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch, attack: Callable[[Path], None]
) -> None:
    toy = pack_toy(open_folder, "1")
    store = Store(str(open_folder / "opt" / "store"))
    run = {**RUN, "readers": ""}
    receive(store, toy, monkeypatch, run=run)
    install.install(store.path, NAME, toy.key, run)
    activation.activate(store.path, NAME, toy.key, run)
    assert probe(store, toy)
    attack(Path(store.path))
    if attack is stranger_planted_a_link:  # only a run that has something to do comes across it
        return
    assert not probe(store, toy)


@pytest.mark.root
def test_the_shell_leaves_what_readers_cannot_start_to_the_program(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = pack_toy(open_folder, "1")
    store = Store(str(open_folder / "opt" / "store"))
    ship(store, toy, monkeypatch)  # readers: me
    assert probe(store, toy, "me")
    assert not probe(store, toy, "")
    assert not probe(store, toy, "all")
    Path(store.path).chmod(0o755)
    assert probe(store, toy, "")
    python = Path(store.python(toy.key))
    python.chmod(0o700)
    assert not probe(store, toy, "")


def start_as_a_stranger(store: Store, toy: PackedToy) -> int:
    command = ["setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups"]
    return subprocess.run([*command, store.python(toy.key)], capture_output=True).returncode


@pytest.mark.root
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_what_root_ships_any_user_can_start_under_any_umask(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch, umask: int
) -> None:
    toy = pack_toy(open_folder, "1")
    store = Store(str(open_folder / "opt" / "store"))
    run = {**RUN, "readers": ""}
    before = os.umask(umask)
    try:
        receive(store, toy, monkeypatch, run=run)
        assert install.install(store.path, NAME, toy.key, run) == {"way": "tree", "is_new": True}
        activation.activate(store.path, NAME, toy.key, run)
    finally:
        os.umask(before)
    assert start_as_a_stranger(store, toy) == 0
    for path in Path(store.path).parent.rglob("*"):
        if not path.is_symlink() and path.parent != Path(store.environment(toy.key)):
            is_folder = path.is_dir() or path.parent.name == "bin"
            assert path.stat().st_mode & 0o7777 == (0o755 if is_folder else 0o644), path


@pytest.mark.root
@pytest.mark.parametrize(
    ("readers", "mode", "gid"),
    [("all", 0o755, 0), ("me", 0o700, 0), (f"group:{GROUP}", 0o750, None)],
)
def test_the_stores_own_folder_says_who_reads_it(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch, readers: str, mode: int, gid: int | None
) -> None:
    toy = pack_toy(open_folder, "1")
    store = Store(str(open_folder / "store"))
    Path(store.path).mkdir(mode=0o711)
    run = {**RUN, "readers": readers}
    receive(store, toy, monkeypatch, run=run)
    assert "note" not in install.install(store.path, NAME, toy.key, run)
    top = Path(store.path).stat()
    assert top.st_mode & 0o7777 == mode
    assert top.st_gid == (grp.getgrnam(GROUP).gr_gid if gid is None else gid)
    assert (start_as_a_stranger(store, toy) == 0) == (readers == "all")


@pytest.mark.root
@pytest.mark.parametrize("readers", ["", "all", f"group:{GROUP}"])
def test_an_environment_that_its_readers_cannot_start_is_a_failure(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch, readers: str
) -> None:
    toy = pack_toy(open_folder, "1")
    closed = open_folder / "closed"
    store = Store(str(closed / "store"))
    run = {**RUN, "readers": readers}
    receive(store, toy, monkeypatch, run=run)
    install.install(store.path, NAME, toy.key, run)
    activation.activate(store.path, NAME, toy.key, run)
    answer = store_status.status(store.path, toy.pack, run)
    assert (answer["installed"], answer["store"]["problem"]) == ("tree", None)
    closed.chmod(0o700)
    answer = store_status.status(store.path, toy.pack, run)
    assert answer["installed"] is None
    assert answer["store"]["problem"]["reason"] == "not-readable"
    with pytest.raises(NodeError, match=f"may not read {closed}") as error:
        install.install(store.path, NAME, toy.key, run)
    assert error.value.reason == "not-readable"
    with pytest.raises(NodeError, match=f"may not read {closed}") as error:
        install.attach(store.path, NAME, toy.key, False, 0.0, run)
    assert error.value.reason == "not-readable"


@pytest.mark.root
def test_root_starts_an_environment_as_another_user(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who gets none of root's variables, and whose failure is one."""
    record = open_folder / "record"
    record.touch()
    record.chmod(0o666)
    monkeypatch.setenv("SECRET", "s3cret")
    python = f"#!/bin/sh\n/usr/bin/env > {record}\n/usr/bin/id -u >> {record}\n[ -r {record} ]\n"
    toy = pack_toy(open_folder, "1", python=python)
    store = Store(str(open_folder / "store"))
    run = {**RUN, "readers": ""}
    receive(store, toy, monkeypatch, run=run)
    install.install(store.path, NAME, toy.key, run)
    assert record.read_text().splitlines()[-1] == "65534"
    assert "s3cret" not in record.read_text()
    other = pack_toy(open_folder, "2", python='#!/bin/sh\n[ "$(/usr/bin/id -u)" = 0 ]\n')
    receive(store, other, monkeypatch, run=run)
    with pytest.raises(NodeError) as error:
        install.install(store.path, NAME, other.key, run)
    assert error.value.reason == "does-not-start"


def answer_to_a_stranger(action: str, data: bytes = b"", **arguments: object) -> dict[str, Any]:
    """What a node program answers that another user runs."""
    program = node_program(action, arguments)
    command = [
        "setpriv",
        f"--reuid={STRANGER}",
        f"--regid={STRANGER}",
        "--clear-groups",
        "sh",
        "-c",
    ]
    result = subprocess.run(
        [*command, f"PATH={os.defpath}; {node_command(len(program))}"],
        input=program + data,
        capture_output=True,
    )
    answer: dict[str, Any] = json.loads(result.stdout.decode().partition(MARK)[2])
    return answer


@pytest.mark.root
@pytest.mark.skipif(shutil.which("python3", path=os.defpath) is None, reason="no python3")
@pytest.mark.parametrize("readers", ["", "me", "all"])
def test_another_account_ships_for_itself_and_says_so(open_folder: Path, readers: str) -> None:
    """In its closed folder; unless the lab says who reads it."""
    home = open_folder / "home"
    home.mkdir(mode=0o700)
    os.chown(home, STRANGER, STRANGER)
    toy = pack_toy(open_folder, "1", python="#!/bin/sh\n")
    run, path = {**RUN, "readers": readers}, str(home / "store")
    answer = answer_to_a_stranger(
        "store-receive",
        toy.image,
        path=path,
        pack=dict(toy.pack),
        sidecar=dict(toy.pack),
        run=run,
        offset=0,
    )
    assert answer["result"]["received"] == len(toy.image)
    answer = answer_to_a_stranger("store-install", path=path, name=NAME, key=toy.key, run=run)
    note = f"other users may not read {home} (mode 700)"
    if readers == "all":
        assert answer["error"] == {"reason": "not-readable", "message": note}
    else:
        expected = {"way": "tree", "is_new": True, **({"note": note} if not readers else {})}
        assert answer["result"] == expected


@pytest.mark.parametrize("umask", [0o000, 0o002])
def test_nobody_else_may_write_to_what_a_ship_makes(
    store: Store, toy: PackedToy, monkeypatch: pytest.MonkeyPatch, umask: int
) -> None:
    before = os.umask(umask)
    try:
        ship(store, toy, monkeypatch)
    finally:
        os.umask(before)
    writable = []
    for path in (Path(store.path), *Path(store.path).rglob("*")):
        if not path.is_symlink() and path.stat().st_mode & 0o022:
            writable.append(path)
    assert writable == []
