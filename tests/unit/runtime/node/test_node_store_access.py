"""A store in which somebody else has a hand is refused; who reads it is as the lab's rules say."""

from __future__ import annotations

import grp
import json
import os
import pwd
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provision.cluster.pack import Pack
from provision.cluster.program import node_command, node_program
from provision.workflow.ship.probe import probe_script
from provision_runtime.node import (
    activation,
    install,
    store_lock,
    store_status,
    transfer,
)
from provision_runtime.node import store as stores
from provision_runtime.node.errors import NodeError
from provision_runtime.node.program import MARK
from provision_runtime.node.store import Store
from tests.node_stores import NAME, RUN, PackedToy, free_port, pack_toy, receive, refused, ship


@pytest.mark.parametrize("folder", ["", "images", "staging", "envs"])
def test_a_store_that_every_user_may_write_to_is_refused(
    store: Store, toy: PackedToy, folder: str
) -> None:
    ship(store, toy)
    Path(store.path, folder).chmod(0o1777)
    with refused("unsafe-store", match=r"every user may write to .* \(mode 1777\)"):
        activation.activate(store.path, NAME, toy.key, RUN)
    with pytest.raises(NodeError, match="every user may write"):
        install.attach(store.path, NAME, toy.key, True, 0.0, RUN)


@pytest.mark.root
def test_a_store_of_another_user_is_refused(store: Store, toy: PackedToy) -> None:
    ship(store, toy)
    os.chown(Path(store.path, "envs"), 12345, -1)
    with pytest.raises(NodeError, match="envs belongs to the user 12345"):
        activation.activate(store.path, NAME, toy.key, RUN)


STRANGER = 65533


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
    [image] = (store / "images").glob("*.tar.gz")
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
    open_folder: Path, attack: Callable[[Path], None]
) -> None:
    ran = open_folder / "ran"
    toy = pack_toy(open_folder, "1", python=f"#!/bin/sh\ntouch {ran}\necho 3.11.7\n")
    store = Store(str(open_folder / "opt" / "store"))
    ship(store, toy)
    ran.unlink()
    attack(Path(store.path))
    before = {path: path.lstat().st_mtime_ns for path in (open_folder / "opt").rglob("*")}
    actions: dict[str, Callable[[], object]] = {
        "install": lambda: install.install(store.path, NAME, toy.key, RUN),
        "attach": lambda: install.attach(store.path, NAME, toy.key, False, 0.0, RUN),
    }
    if attack is not stranger_changed_a_file_of_the_tree:  # which only reads all files
        actions |= {
            "status": lambda: store_status.status(store.path, toy.pack, RUN),
            "receive": lambda: receive(store, toy),
            "serve": lambda: transfer.serve(
                store.path, toy.pack, free_port(), ["secret"], 0.1, RUN
            ),
            "activate": lambda: activation.activate(store.path, NAME, toy.key, RUN),
            "release": lambda: store_lock.release(store.path, NAME, RUN),
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
@pytest.mark.parametrize("location", ["store", "store/envs", "parent"])
def test_a_link_that_waits_for_the_store_is_not_followed(open_folder: Path, location: str) -> None:
    """Root would make its folders where the link leads."""
    (open_folder / "victim").mkdir(mode=0o700)
    sticky = open_folder / "scratch"
    sticky.mkdir()
    sticky.chmod(0o1777)
    path = sticky / ("parent/store" if location == "parent" else "store")
    link = sticky / location
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(open_folder / "victim")
    os.lchown(link, STRANGER, STRANGER)
    with refused("unsafe-store"):
        receive(Store(str(path)), pack_toy(open_folder, "1"))
    assert list((open_folder / "victim").iterdir()) == []
    assert (open_folder / "victim").stat().st_mode & 0o7777 == 0o700


@pytest.mark.parametrize("location", ["lock", "journal.jsonl", "staging/PART"])
def test_a_second_name_of_another_file_is_not_written_through(
    store: Store, toy: PackedToy, tmp_path: Path, location: str
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("years")
    name = Path(store.path, location.replace("PART", Path(store.part(toy.parsed)).name))
    name.parent.mkdir(parents=True, exist_ok=True)
    name.hardlink_to(victim)
    with refused("not-ours"):
        ship(store, toy)
    assert victim.read_text() == "years"


def test_a_pipe_in_the_place_of_the_journal_does_not_wait(store: Store, toy: PackedToy) -> None:
    Path(store.path).mkdir()
    os.mkfifo(store.lock)
    with refused("not-ours"):
        ship(store, toy)


GROUP = "games"  # every Linux has it, and a user of that name in it


@pytest.mark.root
def test_a_lab_may_trust_the_members_of_a_group(open_folder: Path) -> None:
    """One of them made the store; what we make in it, the others may change."""
    gid, uid = grp.getgrnam(GROUP).gr_gid, pwd.getpwnam(GROUP).pw_uid
    path = open_folder / "store"
    path.mkdir()
    os.chown(path, uid, gid)
    path.chmod(0o2775)
    toy = pack_toy(open_folder, "1")
    with refused("unsafe-store"):
        receive(Store(str(path)), toy)
    run = {**RUN, "readers": "", "trusted_group": GROUP}
    receive(Store(str(path)), toy, run=run)
    assert install.install(str(path), NAME, toy.key, run)["method"] == "tree"
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
    pack = Pack(image=Path(store.image(toy.parsed)), sidecar=toy.pack)
    script = probe_script(store.path, pack, stores.SUFFIXES["tar"], readers)
    result = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
    reply = json.loads(result.stdout.partition(MARK)[2])
    return bool(reply["result"]["active"])


@pytest.mark.root
@pytest.mark.parametrize(
    "attack",
    [attack for attack in UNSAFE if attack is not stranger_changed_a_file_of_the_tree],
    ids=lambda attack: attack.__name__,
)
def test_the_shell_leaves_what_a_stranger_may_change_to_the_program(
    open_folder: Path, attack: Callable[[Path], None]
) -> None:
    toy = pack_toy(open_folder, "1")
    store = Store(str(open_folder / "opt" / "store"))
    run = {**RUN, "readers": ""}
    ship(store, toy, run)
    assert probe(store, toy)
    attack(Path(store.path))
    if attack is stranger_planted_a_link:  # only a run that has something to do comes across it
        return
    assert not probe(store, toy)


@pytest.mark.root
def test_the_shell_leaves_what_readers_cannot_start_to_the_program(open_folder: Path) -> None:
    toy = pack_toy(open_folder, "1")
    store = Store(str(open_folder / "opt" / "store"))
    ship(store, toy)  # readers: me
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
def test_what_root_ships_any_user_can_start_under_any_umask(open_folder: Path, umask: int) -> None:
    toy = pack_toy(open_folder, "1")
    store = Store(str(open_folder / "opt" / "store"))
    run = {**RUN, "readers": ""}
    before = os.umask(umask)
    try:
        receive(store, toy, run=run)
        assert install.install(store.path, NAME, toy.key, run) == {"method": "tree", "is_new": True}
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
    open_folder: Path, readers: str, mode: int, gid: int | None
) -> None:
    toy = pack_toy(open_folder, "1")
    store = Store(str(open_folder / "store"))
    Path(store.path).mkdir(mode=0o711)
    run = {**RUN, "readers": readers}
    receive(store, toy, run=run)
    assert "note" not in install.install(store.path, NAME, toy.key, run)
    top = Path(store.path).stat()
    assert top.st_mode & 0o7777 == mode
    assert top.st_gid == (grp.getgrnam(GROUP).gr_gid if gid is None else gid)
    assert (start_as_a_stranger(store, toy) == 0) == (readers == "all")


@pytest.mark.root
@pytest.mark.parametrize("readers", ["", "all", f"group:{GROUP}"])
def test_an_environment_that_its_readers_cannot_start_is_a_failure(
    open_folder: Path, readers: str
) -> None:
    toy = pack_toy(open_folder, "1")
    closed = open_folder / "closed"
    store = Store(str(closed / "store"))
    run = {**RUN, "readers": readers}
    ship(store, toy, run)
    reply = store_status.status(store.path, toy.pack, run)
    assert (reply["installed"], reply["store"]["problem"]) == ("tree", None)
    closed.chmod(0o700)
    reply = store_status.status(store.path, toy.pack, run)
    problem = reply["store"]["problem"]
    assert reply["installed"] is None
    assert problem is not None and problem["reason"] == "not-readable"
    with refused("not-readable", match=f"may not read {closed}"):
        install.install(store.path, NAME, toy.key, run)
    with refused("not-readable", match=f"may not read {closed}"):
        install.attach(store.path, NAME, toy.key, False, 0.0, run)


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
    receive(store, toy, run=run)
    install.install(store.path, NAME, toy.key, run)
    assert record.read_text().splitlines()[-1] == "65534"
    assert "s3cret" not in record.read_text()
    other = pack_toy(open_folder, "2", python='#!/bin/sh\n[ "$(/usr/bin/id -u)" = 0 ]\n')
    receive(store, other, run=run)
    with refused("does-not-start"):
        install.install(store.path, NAME, other.key, run)


def reply_to_a_stranger(action: str, data: bytes = b"", **arguments: object) -> dict[str, Any]:
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
    reply: dict[str, Any] = json.loads(result.stdout.decode().partition(MARK)[2])
    return reply


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
    reply = reply_to_a_stranger(
        "store-receive",
        toy.image,
        path=path,
        pack=toy.pack,
        run=run,
        offset=0,
    )
    assert reply["result"]["size"] == len(toy.image)
    reply = reply_to_a_stranger("store-install", path=path, name=NAME, key=toy.key, run=run)
    note = f"other users may not read {home} (mode 700)"
    if readers == "all":
        assert reply["error"] == {"reason": "not-readable", "message": note}
    else:
        expected = {"method": "tree", "is_new": True, **({"note": note} if not readers else {})}
        assert reply["result"] == expected


@pytest.mark.parametrize("umask", [0o000, 0o002])
def test_nobody_else_may_write_to_what_a_ship_makes(
    store: Store, toy: PackedToy, umask: int
) -> None:
    before = os.umask(umask)
    try:
        ship(store, toy)
    finally:
        os.umask(before)
    writable = []
    for path in (Path(store.path), *Path(store.path).rglob("*")):
        if not path.is_symlink() and path.stat().st_mode & 0o022:
            writable.append(path)
    assert writable == []
