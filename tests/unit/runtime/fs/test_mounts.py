"""Which file system a path lies on, from what kernels write."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision_runtime.fs import mounts

MOUNTINFO = """\
21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
30 21 0:26 / /dev/shm rw,nosuid shared:3 - tmpfs tmpfs rw,size=65536k
40 21 0:45 /export /shared rw,relatime shared:9 master:2 - nfs4 server:/export rw,vers=4.2,local_lock=none
41 40 0:46 / /shared/my\\040data rw - fuse.s3fs s3fs rw
42 21 0:50 / /shared-not rw - tmpfs none rw
43 21 0:51 / /over rw - tmpfs first rw
44 43 0:52 / /over rw - tmpfs second rw
45 21 0:53 / /cut
"""


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("/", "/dev/vda"),
        ("/home/me", "/dev/vda"),
        ("/shared", "server:/export"),
        ("/shared/run", "server:/export"),
        ("/shared-nothing", "/dev/vda"),
        ("/shared/my data/run", "s3fs"),
        ("/over/it", "second"),
        ("/cut/off", "/dev/vda"),
    ],
)
def test_deepest_mount_above_a_path(path: str, source: str) -> None:
    mount = mounts.mount_of(path, mounts.parse(MOUNTINFO))
    assert mount is not None
    assert mount.source == source


def test_options_of_mount_and_filesystem() -> None:
    mount = mounts.mount_of("/shared", mounts.parse(MOUNTINFO))
    assert mount is not None
    assert (mount.root, mount.options, str(mount)) == (
        "/export",
        "rw,relatime,rw,vers=4.2,local_lock=none",
        "nfs4 server:/export mounted at /shared",
    )


def test_no_mounts_no_answer() -> None:
    assert mounts.parse("") == []
    assert mounts.mount_of("/shared", []) is None
    assert str(mounts.MountLocation(7, None)) == "device 7"


def test_missing_path_is_on_its_parents_mount(tmp_path: Path) -> None:
    mount = mounts.locate(tmp_path)
    assert mount.device == tmp_path.stat().st_dev
    assert mounts.locate(tmp_path / "not" / "yet") == mount
    assert mounts.from_json(mount.as_json()) == mount


def test_symlink_is_on_its_targets_mount(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/proc")
    assert mounts.locate(tmp_path / "link").device == Path("/proc").stat().st_dev
