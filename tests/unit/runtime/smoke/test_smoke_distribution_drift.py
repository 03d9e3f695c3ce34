"""Ranks whose environments hold other distributions, from real folders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from provision_runtime.fs import mounts
from provision_runtime.smoke import distribution_drift
from tests.unit.runtime.smoke.builders import rank_env

SITE = Path("lib/python3.11/site-packages")
ENV = rank_env(world_size=4)


def add_wheel(prefix: Path, name: str, version: str = "1.0") -> None:
    info = prefix / SITE / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (prefix / SITE / f"{name}.py").write_text("x = 1\n")
    (info / "RECORD").write_text(f"{name}.py,,\n{info.name}/RECORD,,\n")


def installed(folder: Path) -> dict[int, distribution_drift.Installed | None]:
    """What each of four ranks has, from a prefix of its own: node0, node1, ..."""
    return {
        rank: distribution_drift.collect(replace(ENV, rank=rank), str(folder / f"node{rank}"))
        for rank in range(4)
    }


@pytest.fixture
def nodes(tmp_path: Path) -> Path:
    for rank in range(4):
        for name in ("torch", "numpy"):
            add_wheel(tmp_path / f"node{rank}", name)
    return tmp_path


def findings(nodes: Path) -> list[tuple[str, tuple[int, ...]]]:
    differences = distribution_drift.differences(installed(nodes))
    return [(finding.message, finding.ranks) for finding in differences]


def test_equal_environments_have_no_findings(nodes: Path) -> None:
    assert findings(nodes) == []


def test_package_that_was_added_on_one_rank_is_named(nodes: Path) -> None:
    add_wheel(nodes / "node2", "einops", "0.8.2")
    assert findings(nodes) == [("einops: absent on ranks 0, 1, 3; 0.8.2 on rank 2", (2,))]


def test_package_that_was_removed_on_one_rank_is_named(nodes: Path) -> None:
    for path in (nodes / "node1" / SITE / "numpy-1.0.dist-info").iterdir():
        path.unlink()
    messages = [message for message, _ in findings(nodes)]
    assert "numpy: 1.0 on ranks 0, 2, 3; absent on rank 1" in messages


def test_changed_files_of_the_same_version_are_named(nodes: Path) -> None:
    (nodes / "node3" / SITE / "torch.py").write_text("x = 1\nx = 2\n")
    ((message, ranks),) = findings(nodes)
    assert message.startswith("torch: 1.0 with files ") and ranks == (3,)


def test_without_a_majority_all_ranks_are_named(nodes: Path) -> None:
    for rank in (0, 1):
        add_wheel(nodes / f"node{rank}", "einops")
    assert findings(nodes)[0][1] == (0, 1, 2, 3)


def test_many_differences_are_counted(nodes: Path) -> None:
    for number in range(9):
        add_wheel(nodes / "node0", f"package{number}")
    messages = [message for message, _ in findings(nodes)]
    assert len(messages) == distribution_drift.MAX_FINDINGS + 1
    assert messages[-1] == "4 more distributions differ between ranks"


def test_on_a_network_file_system_only_records_are_read(
    nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount = mounts.Mount(str(nodes), "lustre", "mds:/lab", "rw")
    monkeypatch.setattr(mounts, "mount_of", lambda path, rows: mount)
    (nodes / "node3" / SITE / "torch.py").write_text("not looked at")
    assert findings(nodes) == []
    add_wheel(nodes / "node3", "einops")
    assert findings(nodes) == [("einops: absent on ranks 0-2; 1.0 on rank 3", (3,))]


def test_ranks_with_other_kinds_of_digests_are_not_compared(nodes: Path) -> None:
    by_rank = installed(nodes)
    first = by_rank[0]
    assert first is not None
    first["with_files"] = False
    first["distributions"]["torch"][1] = "of the record"
    assert distribution_drift.differences(by_rank) == []


def test_one_rank_of_a_host_looks_if_there_are_several_hosts(nodes: Path) -> None:
    prefix = str(nodes / "node0")
    assert distribution_drift.collect(replace(ENV, local_rank=1), prefix) is None
    assert distribution_drift.collect(replace(ENV, local_world_size=4), prefix) is None
    assert distribution_drift.collect(ENV, prefix) is not None


def test_unreadable_environment_is_not_compared(tmp_path: Path) -> None:
    assert distribution_drift.collect(ENV, str(tmp_path / "absent")) is None
