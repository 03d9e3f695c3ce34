"""What a process may use: cgroup files from text, quotas in laid-out trees, shared memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision_runtime.facts import limits
from provision_runtime.fs import mounts

V2_HOST = """\
24 30 0:22 / /proc rw,nosuid shared:12 - proc proc rw
31 23 0:28 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate
40 23 8:1 / /with\\040blank rw - ext4 /dev/sda1 rw
"""
V1_DOCKER = """\
737 733 0:60 / /sys/fs/cgroup rw,nosuid - tmpfs tmpfs rw,mode=755
740 737 0:30 /docker/3f9 /sys/fs/cgroup/cpu,cpuacct ro,nosuid master:15 - cgroup cgroup rw,cpu,cpuacct
741 737 0:31 /docker/3f9 /sys/fs/cgroup/memory ro,nosuid master:16 - cgroup cgroup rw,memory
"""


def tree(root: Path, mounts: str, groups: str, files: dict[str, str]) -> Path:
    texts = {"proc/self/mountinfo": mounts, "proc/self/cgroup": groups, **files}
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@given(st.text(max_size=200))
def test_any_kernel_text_is_parsed_without_errors(text: str) -> None:
    mounts.parse(text)
    limits.parse_groups(text)


def test_groups_by_controller() -> None:
    groups = limits.parse_groups("5:cpu,cpuacct:/job\n1:name=systemd:/x:y\n0::/slice\n")
    assert groups == {"cpu": "/job", "cpuacct": "/job", "name=systemd": "/x:y", "": "/slice"}


@pytest.mark.parametrize(
    ("text", "quota"),
    [
        ("max 100000", None),
        ("150000 100000\n", 1.5),
        ("5000 100000", 0.05),
        ("-1 100000", None),
        ("50000 0", None),
        ("", None),
        ("1", None),
    ],
)
def test_quotas(text: str, quota: float | None, tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert limits.read_quota(tmp_path) == quota


def test_tightest_ancestor_group_counts(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/job/cpu.max": "400000 100000\n",
        "sys/fs/cgroup/job/step/cpu.max": "max 100000\n",
        "sys/fs/cgroup/job/step/task/cpu.max": "800000 100000\n",
        "sys/fs/cgroup/other/cpu.max": "100000 100000\n",
    }
    root = tree(tmp_path, V2_HOST, "0::/job/step/task\n", files)
    assert limits.cpu_quota(root) == 4
    assert limits.cpus(root)["quota"] == 4


def test_cgroup_v1_container_reads_the_mount_root(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "250000\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    }
    for name, group in (("named", "/docker/3f9"), ("unnamed", "/")):
        root = tree(tmp_path / name, V1_DOCKER, f"4:cpu,cpuacct:{group}\n", files)
        assert limits.cpu_quota(root) == 2.5


def test_no_cgroup_is_no_quota(tmp_path: Path) -> None:
    assert limits.cpu_quota(tmp_path) is None
    assert limits.cpu_quota(tree(tmp_path, V2_HOST, "0::/\n", {})) is None


def test_allowed_cpus_respect_affinity_and_quota(tmp_path: Path) -> None:
    cpus = limits.cpus(tmp_path)
    assert cpus["affinity"] == cpus["allowed"] == len(os.sched_getaffinity(0))
    root = tree(tmp_path, V2_HOST, "0::/\n", {"sys/fs/cgroup/cpu.max": "50000 100000\n"})
    assert limits.cpus(root)["allowed"] == 0.5


def test_shared_memory_is_measured(tmp_path: Path) -> None:
    assert limits.shared_memory(tmp_path) is None
    (tmp_path / "dev/shm").mkdir(parents=True)
    shared_memory, status = limits.shared_memory(tmp_path), os.statvfs(tmp_path)
    assert shared_memory is not None
    assert shared_memory["bytes"] == status.f_blocks * status.f_frsize
    assert shared_memory["device"] == tmp_path.stat().st_dev


def test_infiniband_needs_its_device_nodes(tmp_path: Path) -> None:
    (tmp_path / "sys/class/infiniband/mlx5_0").mkdir(parents=True)
    assert limits.infiniband(tmp_path) == []
    (tmp_path / "dev/infiniband").mkdir(parents=True)
    (tmp_path / "dev/infiniband/uverbs0").touch()
    assert limits.infiniband(tmp_path) == ["uverbs0"]
