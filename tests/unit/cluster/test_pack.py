"""Packs on disk: keys, sidecars, what is read back and what is removed; and tar images."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from provision.adapters import squashfs
from provision.cluster import pack as packs
from provision.cluster.pack import Pack, PackedDistribution, PackInputs, Sidecar
from provision.core.errors import IntegrityError, InvalidSpec, ToolMissing
from provision_runtime.node import store as stores
from provision_runtime.node.results import METRICS
from provision_runtime.node.signatures import SIGNERS
from provision_runtime.node.store import Store
from tests.programs import write_program

KEY = "lab-0123456789ab"
SHA = "a" * 64
INPUTS: PackInputs = {
    "name": "lab",
    "key": KEY,
    "format": "squashfs",
    "compression": "zstd",
    "install_path": f"/opt/provision/envs/{KEY}",
}


def sidecar(content: bytes, inputs: PackInputs = INPUTS) -> Sidecar:
    entry: PackedDistribution = {
        "version": "1",
        "kind": "wheel",
        "digest": SHA,
    }
    return {
        "schema": 1,
        **inputs,
        "made_with": "mksquashfs 4.5.1",
        "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "unpacked_size": 10,
        "unpacked_files": 2,
        "lock_sha256": SHA,
        "content_hash": SHA,
        "runtime": {"version": "0.1.0", "sha256": SHA},
        "python": "3.11.7",
        "platform": "linux-64",
        "glibc_min": "2.28",
        "driver_min": None,
        "root": SHA,
        "distributions": {"torch": entry},
    }


def publish(folder: Path, content: bytes = b"image", inputs: PackInputs = INPUTS) -> Pack:
    folder.mkdir(parents=True, exist_ok=True)
    staging = folder / ".staging"
    staging.write_bytes(content)
    return packs.publish(staging, sidecar(content, inputs), folder)


def of_key(digits: str) -> PackInputs:
    return {**INPUTS, "key": f"lab-{digits * 12}"}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_key_changes_with_lock_and_runtime_alone() -> None:
    key = packs.pack_key("lab", "1", "2")
    assert key == packs.pack_key("lab", "1", "2")
    assert key.startswith("lab-") and len(key) == len("lab-") + 12
    assert len({key, packs.pack_key("lab", "0", "2"), packs.pack_key("lab", "1", "0")}) == 3


@pytest.mark.parametrize("name", [f"{KEY}.json", ""])
def test_pack_is_read_by_sidecar_or_folder(tmp_path: Path, name: str) -> None:
    made = publish(tmp_path)
    assert packs.read_pack(tmp_path / name) == made
    assert (made.key, made.sidecar["install_path"]) == (KEY, f"/opt/provision/envs/{KEY}")


def test_latest_pack_of_a_folder_is_read(tmp_path: Path) -> None:
    latest = publish(tmp_path, inputs=of_key("2"))
    older = publish(tmp_path, inputs=of_key("1"))
    os.utime(older.sidecar_path, (0, 0))
    assert packs.read_pack(tmp_path) == latest


def test_earlier_pack_becomes_the_latest_again(tmp_path: Path) -> None:
    """When a lock goes back to what it was."""
    earlier = publish(tmp_path, inputs=of_key("1"))
    os.utime(earlier.sidecar_path, (0, 0))
    latest = publish(tmp_path, inputs=of_key("2"))
    before = latest.sidecar_path.stat()
    packs.ensure_latest(latest)
    assert latest.sidecar_path.stat().st_mtime_ns == before.st_mtime_ns
    packs.ensure_latest(earlier)
    assert packs.read_pack(tmp_path) == earlier


def test_no_pack_says_what_makes_one(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent", tmp_path / "absent.sqsh"):
        with pytest.raises(ToolMissing, match="`provision pack NAME` makes it"):
            packs.read_pack(path)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"size": 6}, r"lab-0123456789ab.sqsh has 5 bytes, not 6"),
        ({"sha256": "short"}, "sha256"),
        ({"key": "../../etc/x-0123456789ab"}, "key"),
        ({"key": "lab-000000000000"}, "it is the sidecar of lab-000000000000"),
        ({"format": "zip"}, "format"),
        ({"schema": 2}, "schema"),
    ],
)
def test_damaged_sidecar_is_refused(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    made = publish(tmp_path)
    made.sidecar_path.write_text(json.dumps({**made.sidecar, **change}))
    with pytest.raises(IntegrityError, match=problem):
        packs.read_pack(tmp_path)


def test_truncated_sidecar_and_missing_image_are_refused(tmp_path: Path) -> None:
    made = publish(tmp_path)
    text = made.sidecar_path.read_text()
    made.sidecar_path.write_text(text[:100])
    with pytest.raises(IntegrityError, match="not JSON"):
        packs.read_pack(tmp_path)
    made.sidecar_path.write_text(text)
    made.image.unlink()
    with pytest.raises(IntegrityError, match="is missing"):
        packs.read_pack(tmp_path)


def test_changed_image_of_the_same_size_is_refused(tmp_path: Path) -> None:
    made = publish(tmp_path)
    packs.check_image(made)
    made.image.write_bytes(b"imagf")
    with pytest.raises(IntegrityError, match="is not what was packed"):
        packs.check_image(packs.read_pack(tmp_path))


def test_other_format_replaces_the_first(tmp_path: Path) -> None:
    publish(tmp_path)
    tar = publish(tmp_path, b"other", {**INPUTS, "format": "tar"})
    assert names(tmp_path) == [f"{KEY}.json", f"{KEY}.tar.gz"]
    assert packs.read_pack(tmp_path) == tar


def test_leftovers_of_killed_runs_go_and_packs_stay(tmp_path: Path) -> None:
    publish(tmp_path)
    (tmp_path / f".{KEY}.provision-building" / "bin").mkdir(parents=True)
    (tmp_path / f".{KEY}.sqsh.provision-building").write_text("half")
    (tmp_path / f".{KEY}.json.x1y2").write_text("half")
    (tmp_path / "lab-000000000000.sqsh").write_text("renamed, but not described yet")
    packs.remove_leftovers(tmp_path)
    assert names(tmp_path) == [f"{KEY}.json", f"{KEY}.sqsh"]


def test_two_latest_packs_are_kept(tmp_path: Path) -> None:
    for age, digits in enumerate("321"):
        os.utime(publish(tmp_path, inputs=of_key(digits)).sidecar_path, (1000 - age, 1000 - age))
    packs.remove_older(tmp_path)
    expected = [f"lab-{digits * 12}{suffix}" for digits in "23" for suffix in (".json", ".sqsh")]
    assert names(tmp_path) == expected


def test_names_of_the_store_are_no_names_of_packs() -> None:
    store = Store("/store")
    own = {*stores.FOLDERS, Path(store.lock).name, Path(store.journal).name, METRICS, SIGNERS}
    assert set(packs.STORE_NAMES) == own
    for name in own:
        with pytest.raises(InvalidSpec, match=f"cannot be shipped as `{name}`"):
            packs.check_name(name)
    packs.check_name("staging2")


# Images


def make_tree(folder: Path) -> Path:
    (folder / "lib" / ("long-" * 30)).mkdir(parents=True)
    (folder / "lib" / ("long-" * 30) / ("name-" * 30)).write_text("deep")
    (folder / "bin").mkdir()
    (folder / "bin" / "python3.11").write_bytes(b"ELF" * 1000)
    (folder / "bin" / "python3.11").chmod(0o755)
    (folder / "bin" / "python").symlink_to("python3.11")
    (folder / "lib" / "link").symlink_to("../bin")
    return folder


def image_of(tree: Path, target: Path) -> bytes:
    packs.write_image(tree, target, "gzip")
    return target.read_bytes()


def test_tar_depends_on_content_alone(tmp_path: Path) -> None:
    """Not on times, umask or the order in which files were made."""
    first = make_tree(tmp_path / "first")
    other = tmp_path / "other"
    subprocess.run(["cp", "-R", "--no-dereference", first, other], check=True)
    (other / "bin").rename(other / "moved")
    (other / "moved").rename(other / "bin")
    (other / "bin" / "python3.11").chmod(0o700)
    os.utime(other / "lib", (1, 1))
    assert image_of(first, tmp_path / "1") == image_of(other, tmp_path / "2")


@pytest.mark.needs("tar", "gzip", "diff")
def test_tar_unpacks_to_the_tree(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree")
    image_of(tree, tmp_path / "image.tar.gz")
    out = tmp_path / "out"
    out.mkdir()
    subprocess.run(["tar", "-xzf", tmp_path / "image.tar.gz", "-C", out], check=True)
    subprocess.run(["diff", "-r", "--no-dereference", tree, out], check=True)
    assert (out / "bin" / "python3.11").stat().st_mode & 0o777 == 0o755
    assert packs.tree_size(out) == packs.tree_size(tree) == (3004, 8)


@pytest.mark.parametrize("printed", ["mksquashfs version 4.3 (2014/05/12)", "hello"])
def test_useless_mksquashfs_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str
) -> None:
    command = tmp_path / "mksquashfs"
    write_program(command, f"#!/bin/sh\necho '{printed}'\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(ToolMissing, match="or newer") as caught:
        squashfs.version()
    assert f"printed `{printed}`" in caught.value.message
    assert "apt or dnf install squashfs-tools" in caught.value.advice
    assert "--format tar" in caught.value.advice


@pytest.mark.parametrize("version", ["4.4", "4.4-git.1", "4.5.1", "4.6.1"])
def test_versions_of_distributions_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    command = tmp_path / "mksquashfs"
    write_program(command, f"#!/bin/sh\necho 'mksquashfs version {version} (2019/08/29)'\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert squashfs.version() == version
