"""What this process may use of its host, from laid-out cgroups; and processes by identity, with real ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from provision.core import host


def lay_out(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("cgroup", "files", "cpus"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 2),  # a container sees its own as the top
        ("0::/a/b\n", {"a/cpu.max": "400000 100000\n", "a/b/cpu.max": "max 100000\n"}, 4),
        ("0::/a/b\n", {"a/cpu.max": "400000 100000\n", "a/b/cpu.max": "50000 100000\n"}, 1),
        (
            "4:cpu,cpuacct:/job\n3:memory:/job\n",
            {
                "cpu,cpuacct/job/cpu.cfs_quota_us": "300000\n",
                "cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
            },
            3,
        ),
        ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ("0::/\n", {"cpu.max": "nonsense"}, 8),
        ("0::/\n", {}, 8),
    ],
)
def test_cpus_are_limited_by_the_tightest_quota(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cgroup: str,
    files: dict[str, str],
    cpus: int,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert host.usable_cpus(lay_out(tmp_path, cgroup, files)) == cpus


def test_affinity_is_used_without_proc(tmp_path: Path) -> None:
    assert host.usable_cpus(tmp_path) == len(os.sched_getaffinity(0))


def test_changed_start_time_means_the_process_ended() -> None:
    space, number, start_time = host.process_identity()
    assert not host.has_ended([space, number, start_time])
    assert host.has_ended([space, number, str(int(start_time) + 1)])
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
        assert host.has_ended([space, str(child.pid), start_time])


@pytest.mark.parametrize("identity", [[], ["?"], ["a", "b", "c"], ["other-boot/1", "1", "1"]])
def test_invisible_process_has_not_ended(identity: list[str]) -> None:
    assert not host.has_ended(identity)
