"""The store of a node on real file systems: mounted, unpacked, full, killed at any moment."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provision_runtime.node import activation, install, transfer
from provision_runtime.node.errors import NodeError
from provision_runtime.node.store import Store
from tests.node_stores import NAME, RUN, PackedToy, pack_toy, receive, refused, ship, sidecar

ROOT = Path(__file__).parent.parent.parent

pytestmark = pytest.mark.needs("mksquashfs", "unsquashfs")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(str(tmp_path / "store"))
    yield store
    for folder in (*Path(store.path, "envs").glob("*"), Path(store.path)):
        if folder.is_mount():
            subprocess.run(["umount", folder], check=True)


def squashfs(folder: Path, version: str) -> PackedToy:
    pack_toy(folder, version, filler=300_000)
    prefix, image = folder / f"prefix-{version}", folder / f"{version}.sqsh"
    command = ["mksquashfs", prefix, image, "-quiet", "-no-progress", "-all-root"]
    subprocess.run([*map(str, command)], check=True)
    content = image.read_bytes()
    return PackedToy(pack=sidecar(version, "squashfs", content, prefix), image=content)


@pytest.mark.parametrize(
    "method",
    [
        pytest.param("kernel", marks=pytest.mark.loop),
        pytest.param("fuse", marks=[pytest.mark.fuse, pytest.mark.needs("squashfuse")]),
        "tree",
    ],
)
def test_each_way_installs_and_is_taken_away_again(
    store: Store, tmp_path: Path, method: str
) -> None:
    toy = squashfs(tmp_path, "1")
    receive(store, toy)
    result = install.install(store.path, NAME, toy.key, RUN, allowed=[method])
    assert (result["method"], result["is_new"]) == (method, True)
    directory = Path(store.environment(toy.key))
    assert (directory / "version").read_text() == "1" * 1000
    if method != "tree":
        flags = os.statvfs(directory).f_flag
        assert flags & os.ST_RDONLY and flags & os.ST_NOSUID and flags & os.ST_NODEV
    assert install.install(store.path, NAME, toy.key, RUN)["is_new"] is False
    job = subprocess.Popen(["sleep", "60"], cwd=directory / "bin")
    try:
        with refused("in-use"):
            install.remove_environment(store, toy.key)
        assert (directory / "version").exists()
    finally:
        job.kill()
        job.wait()
    install.remove_environment(store, toy.key)
    assert not directory.exists()
    assert list(Path(store.path, "images").iterdir()) == []


@pytest.mark.loop
@pytest.mark.parametrize("options", ["ro,loop,nodev", "ro,loop,nosuid"])
def test_a_mount_that_could_give_rights_is_not_used(
    store: Store, tmp_path: Path, options: str
) -> None:
    """Such as one of a line in fstab."""
    toy = squashfs(tmp_path, "1")
    receive(store, toy)
    install.install(store.path, NAME, toy.key, RUN, allowed=["kernel"])
    directory = store.environment(toy.key)
    subprocess.run(["umount", directory], check=True)
    mount = ["mount", "-t", "squashfs", "-o", options, store.image(toy.parsed), directory]
    subprocess.run(mount, check=True)
    with refused("unsafe-store", match="is not mounted with ro,nosuid,nodev"):
        install.install(store.path, NAME, toy.key, RUN)


@pytest.mark.loop
def test_a_mount_that_a_restart_ended_is_made_again(store: Store, tmp_path: Path) -> None:
    toy = squashfs(tmp_path, "1")
    receive(store, toy)
    install.install(store.path, NAME, toy.key, RUN, allowed=["kernel"])
    subprocess.run(["umount", store.environment(toy.key)], check=True)
    with refused("not-installed"):
        activation.activate(store.path, NAME, toy.key, RUN)
    result = install.install(store.path, NAME, toy.key, RUN, allowed=["kernel"])
    assert result == {"method": "kernel", "is_new": True, "ends_at_boot": True}


@pytest.mark.loop
def test_mounts_of_other_nodes_stay_when_one_mounts_again(store: Store, tmp_path: Path) -> None:
    """Of a shared store. The other node is a namespace: a mount at a folder that is removed elsewhere
    goes with it, as on a network file system."""
    toy = squashfs(tmp_path, "1")
    receive(store, toy)
    install.install(store.path, NAME, toy.key, RUN, allowed=["kernel"])
    version = Path(store.environment(toy.key), "version")
    script = f"echo ready; read line; cat {shlex.quote(str(version))}"
    with subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        subprocess.run(["umount", store.environment(toy.key)], check=True)
        result = install.install(store.path, NAME, toy.key, RUN, allowed=["kernel"])
        assert result == {"method": "kernel", "is_new": True, "ends_at_boot": True}
        assert other.communicate("\n")[0] == "1" * 1000


def test_where_mounting_is_refused_the_next_way_is_taken(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise NodeError("no-method", "mount: permission denied")

    toy = squashfs(tmp_path, "1")
    receive(store, toy)
    monkeypatch.setattr(install, "_mount_by_kernel", refuse)
    monkeypatch.setattr(install, "_mount_by_fuse", refuse)
    assert install.install(store.path, NAME, toy.key, RUN)["method"] == "tree"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k,mode=755", "tmpfs", str(folder)], check=True
    )
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.mounts
def test_a_disk_that_fills_up_while_an_image_arrives_is_left_free(
    small_disk: Path, tmp_path: Path
) -> None:
    toy = pack_toy(tmp_path, "1", filler=1_000_000)
    store = Store(str(small_disk))
    with refused("disk-full"):
        receive(store, toy)
    assert not Path(store.part(toy.parsed)).exists()


@pytest.mark.mounts
def test_a_disk_that_fills_up_while_unpacking_is_left_free(
    small_disk: Path, tmp_path: Path
) -> None:
    toy = squashfs(tmp_path, "1")
    store = Store(str(small_disk))
    receive(store, toy)
    with pytest.raises(NodeError) as error:
        install.install(store.path, NAME, toy.key, RUN, allowed=["tree"])
    assert error.value.reason in ("disk-full", "no-method")
    assert list(Path(store.path, "envs").iterdir()) == []


KILLED = """
import io, json, os, signal, sys
from types import SimpleNamespace
from provision_runtime.node import activation, install, transfer
pack, image, path, run, left = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3], json.loads(sys.argv[4]), int(sys.argv[5])
STEPS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree", "os.symlink", "subprocess.Popen"}
def count(event, arguments):
    global left
    if event in STEPS and (path in str(arguments) or event == "subprocess.Popen"):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.stdin = SimpleNamespace(buffer=open(image, "rb"))
sys.addaudithook(count)
transfer.receive(path, pack, run, 0)
install.install(path, pack["name"], pack["key"], run)
activation.activate(path, pack["name"], pack["key"], run)
"""


def killed_before(step: int, toy: PackedToy, image: Path, store: Store) -> bool:
    """Receive, install and activate in a process that is killed before its n-th change of the disk;
    whether it was."""
    arguments: list[Any] = [json.dumps(toy.pack), image, store.path, json.dumps(RUN), step]
    command = [sys.executable, "-c", KILLED, *map(str, arguments)]
    status = subprocess.run(command, cwd=ROOT, stderr=subprocess.DEVNULL).returncode
    assert status in (0, -9), status
    return status == -9


def steps_of_a_ship(tmp_path: Path, stride: int) -> int:
    """Kill before every `stride`-th step; afterwards the node has the old environment or the new
    one, and the next run brings the new one. Returns the number of kills."""
    old, new = pack_toy(tmp_path, "1"), pack_toy(tmp_path, "2")
    image = tmp_path / "image"
    image.write_bytes(new.image)
    for kills, step in enumerate(range(0, 10_000, stride)):
        store = Store(str(tmp_path / f"store{step}"))
        ship(store, old)
        was_killed = killed_before(step, new, image, store)
        link = Path(store.link(NAME))
        assert link.readlink().name in (old.key, new.key)
        version = (link / "version").read_text()
        assert version == ("1" if link.readlink().name == old.key else "2") * 1000
        ship(store, new)
        assert (link / "version").read_text() == "2" * 1000
        assert list(Path(store.path, "staging").iterdir()) == []
        hidden = [path for path in Path(store.path, "envs").iterdir() if path.name[0] == "."]
        assert hidden == []
        if not was_killed:
            return kills
    raise AssertionError("it never came to its end")


def test_a_node_that_is_killed_has_the_old_environment_or_the_new_one(tmp_path: Path) -> None:
    assert steps_of_a_ship(tmp_path, stride=7) >= 4


@pytest.mark.exhaustive
def test_a_node_that_is_killed_before_every_step(tmp_path: Path) -> None:
    assert steps_of_a_ship(tmp_path, stride=1) >= 30


@pytest.mark.loop
@pytest.mark.needs("mkfs.ext4")
def test_a_verification_reads_the_disk_and_not_the_memory(store: Store, tmp_path: Path) -> None:
    """A byte changes below the file system, as in a disk that lies."""
    disk = tmp_path / "disk"
    disk.write_bytes(bytes(16 << 20))
    subprocess.run(["mkfs.ext4", "-q", disk], check=True)
    Path(store.path).mkdir()
    subprocess.run(["mount", "-o", "loop", disk, store.path], check=True)
    toy = pack_toy(tmp_path, "1", filler=100_000)
    receive(store, toy)
    os.sync()
    content = disk.read_bytes()
    position = content.index(toy.image[50_000:54_096])
    with disk.open("r+b") as file:
        file.seek(position)
        file.write(bytes([content[position] ^ 1]))
    image = Path(store.image(toy.parsed))
    assert image.read_bytes() == toy.image  # so the memory says
    assert transfer.file_sha256(str(image)) != toy.pack["sha256"]
