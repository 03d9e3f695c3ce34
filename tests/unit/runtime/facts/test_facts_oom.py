"""The kernel's count of processes that it killed for want of memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision_runtime.facts import oom

V2 = "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = """740 737 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
741 737 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
"""


def tree(root: Path, mounts: str, groups: str, counter: str, text: str) -> Path:
    texts = {"proc/self/mountinfo": mounts, "proc/self/cgroup": groups, counter: text}
    for name, content in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


@pytest.mark.parametrize(
    ("mounts", "groups", "file", "text"),
    [
        (V2, "0::/job/step\n", "job/step/memory.events", "low 0\noom 3\noom_kill 2\n"),
        (
            V1,
            "4:memory:/job\n1:cpu:/\n0::/\n",
            "memory/job/memory.oom_control",
            "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        ),
    ],
    ids=["v2", "v1"],
)
def test_counter_of_the_own_group(
    tmp_path: Path, mounts: str, groups: str, file: str, text: str
) -> None:
    path = f"sys/fs/cgroup/{file}"
    counter = oom.this_counter(tree(tmp_path, mounts, groups, path, text))
    assert counter == oom.OomCounter(str(tmp_path / path), 2)
    assert counter.rise() == 0
    (tmp_path / path).write_text("oom_kill 5\n")
    assert counter.rise() == 3
    (tmp_path / path).unlink()
    assert counter.rise() == 0


def test_a_kernel_that_does_not_count_has_no_counter(tmp_path: Path) -> None:
    path = "sys/fs/cgroup/memory/memory.oom_control"
    old = "oom_kill_disable 0\nunder_oom 0\n"
    assert oom.this_counter(tree(tmp_path, V1, "4:memory:/\n", path, old)) is None
    assert oom.this_counter(tmp_path / "empty") is None
