"""Whether another user has a hand in a path: owners, permissions, links, access lists, mounts."""

from __future__ import annotations

import grp
import json
import os
import pwd
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from provision.cluster.program import node_program
from provision_runtime.node import trust
from provision_runtime.node.program import MARK
from provision_runtime.node.trust import Trust
from tests.programs import write_program

STRANGER = 65533
# A group and its one user that every Linux has; root is in neither.
GROUP = "games"
NFS_NOBODY = 65534

pytestmark = pytest.mark.root


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users may enter, in a sticky one."""
    with tempfile.TemporaryDirectory(prefix="trust-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def python(folder: Path) -> Path:
    """The Python of an environment in a store, where nobody else has a hand in it."""
    path = folder / "opt" / "store" / "envs" / "toy" / "bin" / "python"
    path.parent.mkdir(parents=True, mode=0o755)
    write_program(path, "#!/bin/sh\n")
    for parent in list(path.parents)[:6]:
        parent.chmod(0o755)
    return path


def problem_of(path: Path, trusted_group: str = "") -> str:
    """Empty for a safe path."""
    return Trust(trusted_group).path_problem(str(path)) or ""


def access_list(*entries: tuple[int, int, int]) -> bytes:
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


NO_ID = 0xFFFFFFFF
OWNER = (1, 7, NO_ID)


def set_list(path: Path, name: str, *entries: tuple[int, int, int]) -> None:
    try:
        os.setxattr(path, name, access_list(*entries))
    except OSError:
        pytest.skip("this file system has no access lists")


def group_writes(store: Path) -> None:
    os.chown(store, -1, 100)
    store.chmod(0o2775)


def parent_is_open(store: Path) -> None:
    store.parent.chmod(0o777)


def link_of_a_stranger(store: Path) -> None:
    real = store.rename(store.parent / "real")
    store.symlink_to(real)
    os.lchown(store, STRANGER, STRANGER)


def link_into_an_open_folder(store: Path) -> None:
    """The link is ours; the folder that it leads through is not."""
    place = store.parent.parent / "scratch"
    place.mkdir()
    real = store.rename(place / "real")
    store.symlink_to("../scratch/real")
    place.chmod(0o777)
    assert real.exists()


def link_to_a_link_of_a_stranger(store: Path) -> None:
    real = store.rename(store.parent / "real")
    (store.parent / "second").symlink_to(real)
    os.lchown(store.parent / "second", STRANGER, STRANGER)
    store.symlink_to("./second")


def nobody_owns(store: Path) -> None:
    os.chown(store, NFS_NOBODY, NFS_NOBODY)


def stranger_owns_the_tree(store: Path) -> None:
    os.chown(store / "envs" / "toy", STRANGER, -1)


def stranger_owns_the_interpreter(store: Path) -> None:
    os.chown(store / "envs" / "toy" / "bin" / "python", STRANGER, -1)


def interpreter_is_writable(store: Path) -> None:
    (store / "envs" / "toy" / "bin" / "python").chmod(0o757)


def user_is_listed(store: Path) -> None:
    entries = (OWNER, (2, 7, STRANGER), (4, 5, NO_ID), (16, 7, NO_ID), (32, 5, NO_ID))
    set_list(store, trust.ACCESS_LIST, *entries)


def group_is_listed(store: Path) -> None:
    entries = (OWNER, (4, 5, NO_ID), (8, 7, 100), (16, 7, NO_ID), (32, 5, NO_ID))
    set_list(store / "envs", trust.ACCESS_LIST, *entries)


def user_is_listed_for_what_is_made(store: Path) -> None:
    entries = (OWNER, (2, 7, STRANGER), (4, 5, NO_ID), (16, 7, NO_ID), (32, 5, NO_ID))
    set_list(store / "envs" / "toy" / "bin", trust.DEFAULT_LIST, *entries)


ATTACKS: dict[Callable[[Path], None], str] = {
    group_writes: "the group users may write to {store} (mode 2775)",
    parent_is_open: "every user may write to {parent} (mode 777)",
    link_of_a_stranger: "the link {store} belongs to the user 65533",
    link_into_an_open_folder: "every user may write to {folder}/scratch",
    link_to_a_link_of_a_stranger: "the link {parent}/second belongs to the user 65533",
    nobody_owns: "{store} belongs to the user nobody",
    stranger_owns_the_tree: "{store}/envs/toy belongs to the user 65533",
    stranger_owns_the_interpreter: "bin/python belongs to the user 65533",
    interpreter_is_writable: "every user may write to {store}/envs/toy/bin/python (mode 757)",
    user_is_listed: "an access list (getfacl) lets the user 65533 write to {store}",
    group_is_listed: "an access list (getfacl) lets the group users write to {store}/envs",
}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_a_path_in_which_a_stranger_has_a_hand(
    folder: Path, python: Path, attack: Callable[[Path], None]
) -> None:
    assert problem_of(python) == ""
    store = folder / "opt" / "store"
    attack(store)
    expected = ATTACKS[attack].format(store=store, parent=store.parent, folder=folder)
    assert expected in problem_of(python)


def test_the_owner_of_the_store_is_trusted_by_itself_only(python: Path) -> None:
    for path in (python, *list(python.parents)[:5]):
        os.chown(path, STRANGER, STRANGER)
    assert problem_of(python)
    assert asked_as(STRANGER, python.parents[1]) == ""


def asked_as(uid: int, prefix: Path, *before: str) -> str:
    """What a node tells another user who wants to start an environment; empty if that is safe."""
    python = shutil.which("python3", path=os.defpath)
    if python is None:
        pytest.skip("this machine has no python3 for all users")
    command = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *before]
    program = node_program("environment-python", {"environments": [str(prefix)], "rules": {}})
    result = subprocess.run([*command, python, "-SsE", "-"], input=program, capture_output=True)
    reply = json.loads(result.stdout.decode().partition(MARK)[2])
    return str(reply.get("error", {}).get("message", ""))


def test_what_is_made_in_a_folder_belongs_to_nobody_else(python: Path) -> None:
    user_is_listed_for_what_is_made(python.parents[3])
    for path in (python.parent, python.parent / "new"):
        assert "write to what is made in" in problem_of(path)


def test_the_mask_of_a_list_takes_what_it_gives(python: Path) -> None:
    entries = (OWNER, (2, 7, STRANGER), (4, 7, NO_ID), (16, 5, NO_ID), (32, 5, NO_ID))
    set_list(python.parents[3], trust.ACCESS_LIST, *entries)
    assert problem_of(python) == ""


def test_what_does_not_exist_yet_is_safe_where_only_we_can_make_it(folder: Path) -> None:
    assert problem_of(folder / "new" / "store") == ""
    folder.chmod(0o1777)
    assert problem_of(folder / "new" / "store") == ""
    folder.chmod(0o777)
    assert problem_of(folder / "new" / "store")


def test_in_a_sticky_folder_only_our_entries_are_safe(folder: Path) -> None:
    folder.chmod(0o1777)
    (folder / "ours").mkdir(mode=0o755)
    (folder / "theirs").mkdir(mode=0o755)
    os.chown(folder / "theirs", STRANGER, -1)
    assert problem_of(folder / "ours") == ""
    assert problem_of(folder / "theirs" / "store")
    assert problem_of(folder)  # others may add to it


def test_a_link_is_followed_from_where_it_lies(folder: Path) -> None:
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "open").mkdir()
    (folder / "a" / "open").chmod(0o777)
    (folder / "link").symlink_to("a/b")
    assert f"{folder}/a/open" in problem_of(folder / "link" / ".." / "open" / "x")


def test_links_that_lead_nowhere_end(folder: Path) -> None:
    (folder / "one").symlink_to("two")
    (folder / "two").symlink_to("one")
    with pytest.raises(OSError, match="Too many levels"):
        Trust().path_problem(str(folder / "one" / "x"))


def test_members_of_the_labs_group_are_trusted_by_name(python: Path) -> None:
    member = pwd.getpwnam(GROUP)
    store = python.parents[3]
    os.chown(store, member.pw_uid, grp.getgrnam(GROUP).gr_gid)
    store.chmod(0o2775)
    assert problem_of(python)
    assert problem_of(python, GROUP) == ""
    os.chown(store, STRANGER, -1)
    assert problem_of(python, GROUP)
    os.chown(store, 0, 100)
    assert "trusted_group: users" in problem_of(python, GROUP)


def test_the_labs_group_may_have_the_number_0(
    python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = pwd.getpwnam(GROUP)
    entry = pwd.struct_passwd((*member[:3], 0, *member[4:]))  # as `operator` of Red Hat
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: entry)
    store = python.parents[3]
    os.chown(store, member.pw_uid, 0)
    assert problem_of(python, "root") == ""


def test_a_group_that_does_not_exist_trusts_nobody(python: Path) -> None:
    assert problem_of(python, "no-such-group").startswith("there is no group no-such-group")


def test_a_users_private_group_is_the_user(python: Path) -> None:
    """A umask of 002 makes folders like this, where every user has such a group."""
    user = pwd.getpwnam(GROUP)
    for path in (python, *list(python.parents)[:5]):
        os.chown(path, user.pw_uid, user.pw_gid)
        path.chmod(0o775)
    assert asked_as(user.pw_uid, python.parents[1]) == ""
    assert problem_of(python)


def test_a_group_with_another_member_is_nobodys_private_one(
    python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python.parents[3].chmod(0o775)
    assert problem_of(python) == ""
    entry = grp.struct_group(("root", "x", 0, ["root", "eve"]))
    with monkeypatch.context() as patch:
        patch.setattr(grp, "getgrgid", lambda _: entry)
        assert problem_of(python)
    eve = pwd.struct_passwd(("eve", "x", 1001, 0, "", "/home/eve", "/bin/sh"))
    everybody = [*pwd.getpwall(), eve]
    monkeypatch.setattr(pwd, "getpwall", lambda: everybody)
    assert problem_of(python)


def test_in_a_user_namespace_without_root_nobody_is_root(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody_owns(python.parents[3])
    for text, is_safe in (
        ("         0          0 4294967295\n", False),
        ("         0     100000      65536\n", True),
        ("      1000       1000          1\n", True),
        ("         0       1000          1\n         1          0          1\n", False),
    ):
        (tmp_path / "map").write_text(text)
        monkeypatch.setattr(trust, "UID_MAP", str(tmp_path / "map"))
        assert (problem_of(python) == "") == is_safe, text


@pytest.mark.needs("unshare")
def test_in_a_real_user_namespace_the_systems_files_are_safe(python: Path) -> None:
    probe = ["setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups"]
    if subprocess.run([*probe, "unshare", "-U", "true"], capture_output=True).returncode:
        pytest.skip("users may make no namespaces here")
    namespace = ("unshare", "--user", "--map-root-user")
    assert asked_as(STRANGER, python.parents[1], *namespace) == ""
    python.parents[3].chmod(0o777)
    assert "every user may write to" in asked_as(STRANGER, python.parents[1], *namespace)


def nfs4_list(*entries: tuple[int, int, int, str]) -> bytes:
    """As RFC 7530 has it, and the attribute of Linux holds it."""
    data = struct.pack(">I", len(entries))
    for kind, flags, rights, name in entries:
        padding = -len(name) % 4
        data += struct.pack(">4I", kind, flags, rights, len(name)) + name.encode() + bytes(padding)
    return data


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([(0, 0, 0x1601FF, "OWNER@"), (0, 0x40, 0x120081, "GROUP@")], None),
        ([(0, 0, 0x1601FF, "root@lab.example"), (1, 0, 0x6, "eve@lab.example")], None),
        ([(0, 0, 0x120081, "eve@lab.example")], None),
        ([(0, 0, 0x6, "eve@lab.example")], "lets eve@lab.example write to"),
        ([(0, 0x40, 0x40, "ml@lab.example")], "lets ml@lab.example write to"),
        ([(0, 0x40, 0x40, f"{GROUP}@lab.example")], None),
    ],
)
def test_lists_of_nfs_4(
    python: Path,
    monkeypatch: pytest.MonkeyPatch,
    entries: list[tuple[int, int, int, str]],
    message: str | None,
) -> None:
    def attribute(path: str, name: str) -> bytes:
        is_listed = name == trust.NFS4_LIST and path.endswith("/store")
        return nfs4_list(*entries) if is_listed else b""

    monkeypatch.setattr(trust, "_attribute", attribute)
    problem = problem_of(python, GROUP)
    assert message in problem if message else problem == ""


def test_a_list_of_nfs_4_that_cannot_be_read_is_not_trusted(
    python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = nfs4_list((0, 0, 6, "eve@lab.example"))[:-9]
    monkeypatch.setattr(
        trust, "_attribute", lambda _, name: data if name == trust.NFS4_LIST else b""
    )
    assert "cannot be read" in problem_of(python)


def listed_mount(point: Path, options: str) -> str:
    return f"90 30 0:55 / {point} ro,nosuid,nodev - fuse.squashfuse squashfuse {options}\n"


def test_a_fuse_mount_is_its_servers_user(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may say that all files are root's."""
    monkeypatch.setattr(trust, "MOUNTINFO", str(tmp_path / "mountinfo"))
    for user, is_safe in ((STRANGER, False), (0, True)):
        text = listed_mount(python.parents[1], f"rw,user_id={user},group_id=0,allow_other")
        (tmp_path / "mountinfo").write_text(text)
        assert (problem_of(python) == "") == is_safe
        assert (Trust().entries_problem(str(python.parents[2])) is None) == is_safe


def test_everything_below_a_tree_is_looked_at(python: Path) -> None:
    tree = python.parents[1]
    deep = tree / "lib" / "site-packages" / "torch"
    deep.mkdir(parents=True)
    (deep / "__init__.py").write_text("")
    assert Trust().entries_problem(str(tree), is_deep=True) is None
    os.chown(deep / "__init__.py", STRANGER, -1)
    assert Trust().entries_problem(str(tree)) is None
    problem = Trust().entries_problem(str(tree), is_deep=True)
    assert problem is not None and "__init__.py belongs to the user 65533" in problem
    os.chown(deep / "__init__.py", 0, -1)
    deep.chmod(0o757)
    problem = Trust().entries_problem(str(tree), is_deep=True)
    assert problem is not None and "every user may write to" in problem


def test_what_keeps_readers_out_is_named(folder: Path, python: Path) -> None:
    assert trust.reader_problem(str(python), "all") is None
    (folder / "opt").chmod(0o750)
    problem = trust.reader_problem(str(python), "all")
    assert problem == f"other users may not read {folder}/opt (mode 750)"
    os.chown(folder / "opt", -1, 100)
    assert trust.reader_problem(str(python), "group:users") is None
    assert trust.reader_problem(str(python), f"group:{GROUP}") is not None
    (folder / "opt").chmod(0o755)
    python.chmod(0o700)
    assert trust.reader_problem(str(python), "all") is not None
    assert "no such group" in str(trust.reader_problem(str(python), "group:no-such-group"))


def test_a_list_may_let_readers_in(folder: Path, python: Path) -> None:
    (folder / "opt").chmod(0o700)
    entries = (OWNER, (4, 0, NO_ID), (8, 5, 100), (16, 5, NO_ID), (32, 0, NO_ID))
    set_list(folder / "opt", trust.ACCESS_LIST, *entries)
    assert trust.reader_problem(str(python), "group:users") is None
    assert trust.reader_problem(str(python), "all") is not None


def test_a_fuse_mount_for_its_user_alone_is_named(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "MOUNTINFO", str(tmp_path / "mountinfo"))
    (tmp_path / "mountinfo").write_text(listed_mount(python.parents[1], "rw,user_id=0,group_id=0"))
    problem = trust.reader_problem(str(python), "all")
    assert problem is not None and "mounted with FUSE, and only the user root can" in problem
