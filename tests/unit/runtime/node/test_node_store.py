"""The store of environments on a node: receiving, verifying, installing, activating, pruning."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from provision_runtime.node import (
    activation,
    install,
    store_files,
    store_journal,
    store_lock,
    store_status,
    transfer,
)
from provision_runtime.node import store as stores
from provision_runtime.node.errors import NodeError
from provision_runtime.node.results import StoreStatus
from provision_runtime.node.store import Store
from tests.node_stores import NAME, RUN, PackedToy, free_port, pack_toy, receive, refused, ship

OTHER_RUN = {**RUN, "id": "run-2", "source": "desktop:1000:/data", "by": "bob@desktop"}


def status(store: Store, toy: PackedToy) -> StoreStatus:
    return store_status.status(store.path, toy.pack, RUN)


def listing(store: Store, folder: str) -> list[str]:
    return [path.name for path in Path(store.path, folder).iterdir()]


def test_status_of_a_path_that_does_not_exist_changes_nothing(store: Store, toy: PackedToy) -> None:
    reply = status(store, toy)
    assert (reply["active"], reply["verified"], reply["installed"]) == (None, False, None)
    assert reply["received"] == 0
    assert not Path(store.path).exists()


def test_an_image_that_was_cut_off_is_continued_and_then_verified(
    store: Store, toy: PackedToy
) -> None:
    with refused("cut-off"):
        receive(store, toy, toy.image[:100])
    assert status(store, toy)["received"] == 100
    assert not status(store, toy)["verified"]
    receive(store, toy, offset=100)
    assert status(store, toy)["verified"]
    assert listing(store, "staging") == [f"{NAME}.lease"]


def test_wrong_bytes_never_reach_the_images_and_the_next_transfer_begins_anew(
    store: Store, toy: PackedToy
) -> None:
    wrong = bytes([toy.image[0] ^ 1]) + toy.image[1:]
    with refused("wrong-bytes"):
        receive(store, toy, wrong)
    assert listing(store, "images") == []
    assert status(store, toy)["received"] == 0


def test_an_image_that_arrived_wholly_is_verified_without_further_bytes(
    store: Store, toy: PackedToy
) -> None:
    Path(store.path, "staging").mkdir(parents=True)
    Path(store.part(toy.parsed)).write_bytes(toy.image)
    receive(store, toy, offset=status(store, toy)["received"])
    assert status(store, toy)["verified"]


def test_an_image_that_was_put_there_counts_for_nothing(store: Store, toy: PackedToy) -> None:
    Path(store.path, "images").mkdir(parents=True)
    Path(store.image(toy.parsed)).write_bytes(bytes([toy.image[0] ^ 1]) + toy.image[1:])
    assert not status(store, toy)["verified"]
    receive(store, toy)
    assert status(store, toy)["verified"]


def test_an_image_that_changed_after_its_verification_is_not_verified(
    store: Store, toy: PackedToy
) -> None:
    receive(store, toy)
    with Path(store.image(toy.parsed)).open("r+b") as file:
        file.write(b"other")
    os.utime(store.image(toy.parsed), ns=(0, 0))
    assert not status(store, toy)["verified"]
    with refused("not-verified"):
        install.install(store.path, NAME, toy.key, RUN)


def test_a_tree_is_unpacked_checked_and_started(store: Store, toy: PackedToy) -> None:
    receive(store, toy)
    assert install.install(store.path, NAME, toy.key, RUN) == {"method": "tree", "is_new": True}
    assert install.install(store.path, NAME, toy.key, RUN) == {"method": "tree", "is_new": False}
    assert Path(store.environment(toy.key), "version").read_text() == "1" * 1000


def test_an_image_whose_files_are_not_those_packed_is_refused(store: Store, toy: PackedToy) -> None:
    receive(store, PackedToy(pack={**toy.pack, "root": "0" * 64}, image=toy.image))
    with refused("wrong-bytes"):
        install.install(store.path, NAME, toy.key, RUN)
    assert listing(store, "envs") == []


def test_an_environment_whose_python_does_not_start_is_taken_away(
    store: Store, tmp_path: Path
) -> None:
    message = "libc.so.6: version GLIBC_2.99 not found"
    toy = pack_toy(tmp_path, "1", python=f'#!/bin/sh\necho "{message}" >&2; exit 1\n')
    receive(store, toy)
    with refused("does-not-start", match="GLIBC_2"):
        install.install(store.path, NAME, toy.key, RUN)
    assert listing(store, "envs") == []


def test_activation_needs_an_installed_environment(store: Store, toy: PackedToy) -> None:
    receive(store, toy)
    with refused("not-installed"):
        activation.activate(store.path, NAME, toy.key, RUN)
    assert activation.history(store.path, NAME)["active"] is None


def test_status_says_that_an_environment_is_active(store: Store, toy: PackedToy) -> None:
    ship(store, toy)
    reply = status(store, toy)
    assert (reply["active"], reply["verified"], reply["installed"]) == (toy.key, True, "tree")
    assert Path(store.link(NAME)).readlink() == Path("envs", toy.key)


def test_a_path_of_that_name_that_is_no_link_is_never_replaced(
    store: Store, toy: PackedToy
) -> None:
    Path(store.link(NAME)).mkdir(parents=True)
    with refused("not-ours"):
        status(store, toy)


def test_the_last_three_are_kept_and_one_that_is_staged(store: Store, tmp_path: Path) -> None:
    toys = [pack_toy(tmp_path, str(number)) for number in range(5)]
    receive(store, toys[4])
    install.install(store.path, NAME, toys[4].key, RUN)
    results = [ship(store, toy) for toy in toys[:4]]
    assert [result["removed"] for result in results] == [[], [], [], [toys[0].key]]
    assert stores.installed_keys(store, NAME) == sorted(toy.key for toy in toys[1:])
    assert not Path(store.image(toys[0].parsed)).exists()
    assert not Path(store.environment(toys[0].key)).exists()


def test_what_a_process_uses_is_not_removed(store: Store, tmp_path: Path) -> None:
    toys = [pack_toy(tmp_path, str(number)) for number in range(4)]
    ship(store, toys[0])
    job = subprocess.Popen(["sleep", "60"], cwd=store.environment(toys[0].key))
    try:
        results = [ship(store, toy) for toy in toys[1:]]
        assert results[-1]["removed"] == []
        assert results[-1]["in_use"] == [toys[0].key]
    finally:
        job.kill()
        job.wait()
    assert activation.activate(store.path, NAME, toys[3].key, RUN)["removed"] == [toys[0].key]


def test_what_a_process_uses_is_not_removed_from_a_store_behind_a_link(
    store: Store, tmp_path: Path
) -> None:
    Path(store.path).mkdir()
    (tmp_path / "link").symlink_to(store.path)
    linked = Store(str(tmp_path / "link"))
    toy = pack_toy(tmp_path, "1")
    ship(linked, toy)
    job = subprocess.Popen(["sleep", "60"], cwd=linked.environment(toy.key))
    try:
        with refused("in-use"):
            install.remove_environment(linked, toy.key)
    finally:
        job.kill()
        job.wait()
    install.remove_environment(linked, toy.key)


def test_rollback_goes_to_the_one_before_and_back_again(store: Store, tmp_path: Path) -> None:
    first, second = (pack_toy(tmp_path, version) for version in "12")
    ship(store, first)
    assert activation.history(store.path, NAME)["previous"] is None
    ship(store, second)
    assert activation.history(store.path, NAME)["previous"] == first.key
    activation.activate(store.path, NAME, first.key, RUN)
    assert activation.history(store.path, NAME) == {
        "active": first.key,
        "previous": second.key,
        "installed": sorted([first.key, second.key]),
    }


def test_a_run_from_elsewhere_is_refused_until_the_lease_is_old(
    store: Store, toy: PackedToy
) -> None:
    receive(store, toy)
    with refused("in-use", match="ann@laptop is shipping toy here"):
        install.install(store.path, NAME, toy.key, OTHER_RUN)
    lease = store_files.read_json(store.lease(NAME))
    assert lease is not None
    store_files.write_json(store.lease(NAME), {**lease, "at": lease["at"] - store_lock.LEASE_S})
    install.install(store.path, NAME, toy.key, OTHER_RUN)


def test_a_later_run_from_the_same_place_takes_the_lease(store: Store, toy: PackedToy) -> None:
    receive(store, toy)
    install.install(store.path, NAME, toy.key, {**RUN, "id": "run-3"})
    store_lock.release(store.path, NAME, RUN)
    assert Path(store.lease(NAME)).exists()
    store_lock.release(store.path, NAME, {**RUN, "id": "run-3"})
    assert not Path(store.lease(NAME)).exists()


def test_a_lock_that_is_held_is_waited_for_and_then_reported(
    store: Store, toy: PackedToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_lock, "LOCK_WAIT_S", 0.0)
    with store_lock.locked(store, NAME, RUN), pytest.raises(NodeError) as error:
        receive(store, toy)
    assert error.value.reason == "in-use"


def test_a_line_of_the_journal_that_was_cut_off_is_skipped(store: Store, toy: PackedToy) -> None:
    ship(store, toy)
    with Path(store.journal).open("a") as file:
        file.write('{"event": "activated", "name": "toy", "key"')
    events = [row["event"] for row in store_journal.journal_events(store)]
    assert events == ["verified", "installed", "activated"]


def serve_in_thread(
    store: Store, toy: PackedToy, port: int, tokens: list[str], idle_s: float = 20
) -> threading.Thread:
    arguments = (store.path, toy.pack, port, tokens, idle_s, RUN)
    thread = threading.Thread(target=transfer.serve, args=arguments)
    thread.start()
    return thread


def test_a_node_fetches_from_another_and_goes_on_where_it_was_cut_off(
    store: Store, toy: PackedToy, tmp_path: Path
) -> None:
    receive(store, toy)
    other = Store(str(tmp_path / "other"))
    with pytest.raises(NodeError):
        receive(other, toy, toy.image[:50])
    port = free_port()
    thread = serve_in_thread(store, toy, port, ["secret"])
    transfer.fetch(other.path, toy.pack, RUN, "n1", ["127.0.0.1"], port, "secret")
    thread.join(timeout=10)
    assert not thread.is_alive()
    assert status(other, toy)["verified"]


def test_a_server_gives_nothing_without_its_token(
    store: Store, toy: PackedToy, tmp_path: Path
) -> None:
    receive(store, toy)
    port = free_port()
    thread = serve_in_thread(store, toy, port, ["secret"], idle_s=0.5)
    other = Store(str(tmp_path / "other"))
    with refused("peer-failed", match="does not accept"):
        transfer.fetch(other.path, toy.pack, RUN, "n1", ["127.0.0.1"], port, "guess")
    thread.join()
    assert status(other, toy)["received"] == 0


def test_a_server_that_is_not_there_is_named(
    toy: PackedToy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "CONNECT_S", 0.0)
    other = (str(tmp_path / "other"), toy.pack, RUN, "n1", ["127.0.0.1"], free_port())
    with refused("peer-unreachable", match="n1 at 127"):
        transfer.fetch(*other, "secret")


def test_only_a_verified_image_is_served(store: Store, toy: PackedToy) -> None:
    with refused("not-verified"):
        transfer.serve(store.path, toy.pack, free_port(), ["secret"], 1, RUN)


def test_a_port_that_is_taken_is_said(store: Store, toy: PackedToy) -> None:
    receive(store, toy)
    with socket.create_server(("", 0)) as listener:
        port = int(listener.getsockname()[1])
        with pytest.raises(NodeError) as error:
            transfer.serve(store.path, toy.pack, port, ["secret"], 1, RUN)
    assert error.value.reason == "port-in-use"


@pytest.mark.parametrize(
    "location",
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
    store: Store, toy: PackedToy, tmp_path: Path, location: str
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("years")
    part = Path(store.part(toy.parsed)).name
    link = Path(store.path, location.replace("KEY", toy.key).replace("PART", part))
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(victim)
    if location in ("lock", "journal.jsonl", "staging/PART"):
        with pytest.raises((NodeError, OSError)) as error:
            ship(store, toy)
        if isinstance(error.value, OSError):
            assert error.value.errno == errno.ELOOP
    else:
        ship(store, toy)
    assert victim.read_text() == "years"


@pytest.mark.parametrize("location", ["envs/KEY", "envs/.KEY.unpacking", "envs/.KEY.removing"])
def test_links_in_the_place_of_environments_are_removed_and_not_followed(
    store: Store, toy: PackedToy, tmp_path: Path, location: str
) -> None:
    victim = tmp_path / "victim"
    (victim / "bin").mkdir(parents=True)
    (victim / "thesis.tex").write_text("years")
    link = Path(store.path, location.replace("KEY", toy.key))
    link.parent.mkdir(parents=True)
    link.symlink_to(victim)
    ship(store, toy)
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
    receive(store, toy)
    Path(store.environment(toy.key)).mkdir(parents=True)
    record = {"sha256": toy.pack["sha256"], "method": "fuse"}
    store_files.write_json(store.installed(toy.key), record)
    inode = Path(store.environment(toy.key)).stat().st_ino
    monkeypatch.setattr(install, "install_methods", lambda _: ["kernel", "fuse"])
    monkeypatch.setattr(install, "fuse_command", lambda: "squashfuse")
    monkeypatch.setattr(install, "run_command", lambda *_: (1, "permission denied"))
    with refused("no-method"):
        install.attach(store.path, NAME, toy.key, active=False, wait_s=0.0, run=RUN)
    with pytest.raises(NodeError):
        install.install(store.path, NAME, toy.key, RUN)
    assert Path(store.environment(toy.key)).stat().st_ino == inode
