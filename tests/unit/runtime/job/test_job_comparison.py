"""Which nodes of a job differ, and the messages about them."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision_runtime.facts import environment, libraries
from provision_runtime.job import comparison

REQUIRED = {"driver": "550.90.07", "Python": "3.11.4", "NCCL_DEBUG": "WARN"}


def nodes(**changes: dict[str, str]) -> dict[str, dict[str, str]]:
    """n1 to n4, with the facts that differ."""
    return {name: {**REQUIRED, **changes.get(name, {})} for name in ("n1", "n2", "n3", "n4")}


def test_nodes_that_are_alike() -> None:
    assert comparison.differences(nodes()) == []


def test_the_node_that_differs_is_named() -> None:
    differing = nodes(n3={"driver": "unknown", "NCCL_IB_DISABLE": "1"})
    assert comparison.differences(differing) == [
        "driver: unknown on n3, 550.90.07 on the other 3",
        "NCCL_IB_DISABLE: 1 on n3, not set on the other 3",
    ]


def test_without_a_majority_all_nodes_are_named() -> None:
    differing = nodes(n1={"Python": "3.11.9"}, n4={"Python": "3.11.9"})
    assert comparison.differences(differing) == ["Python: 3.11.9 on n1, n4, 3.11.4 on n2, n3"]


def test_many_nodes_are_counted() -> None:
    facts = {f"n{number}": {"kernel": "5.10" if number < 20 else "6.1.0"} for number in range(50)}
    assert comparison.differences(facts) == [
        "kernel: 5.10 on n0, n1, n2, n3, n4, n5, n6, n7 and 12 more, 6.1.0 on the other 30"
    ]


@pytest.mark.parametrize(
    ("listed", "count"), [("0,1", 2), ("", 0), ("NoDevFiles", 0), ("-1", 0), ("0,-1,1", 1)]
)
def test_visible_gpus_are_those_of_the_scheduler(listed: str, count: int) -> None:
    assert libraries.visible_gpus({"CUDA_VISIBLE_DEVICES": listed}) == count


def test_problems_of_a_single_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "lock_hash", lambda: "a" * 64)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    script = str(tmp_path / "train.py")
    assert comparison.node_problems(gpus=2, lock="c" * 64, script=script) == [
        "its environment is aaaaaaaaaaaa, not cccccccccccc, which was launched",
        "1 of 2 GPUs are visible",
        f"there is no {script}",
    ]
    (tmp_path / "train.py").write_text("")
    assert comparison.node_problems(gpus=1, lock="a" * 64, script=script) == []


def test_facts_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setattr(environment, "lock_hash", lambda: "a" * 64)
    facts = comparison.collect()
    assert (facts["environment"], facts["NCCL_DEBUG"]) == ("a" * 12, "WARN")
    assert all(isinstance(text, str) and text for text in facts.values())


def test_two_commits_of_one_version_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtimes = set()
    for commit in ("1", "2"):
        record = tmp_path / commit / "provision_runtime-0.1.0.dist-info" / "RECORD"
        record.parent.mkdir(parents=True)
        record.write_text(commit)
        monkeypatch.setattr(comparison, "PACKAGES", tmp_path / commit)
        runtimes.add(comparison.collect()["runtime"])
    assert len(runtimes) == 2


def test_gpu_models_as_the_driver_lists_them(tmp_path: Path) -> None:
    for number, model in enumerate(("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB")):
        folder = tmp_path / f"proc/driver/nvidia/gpus/0000:0{number}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 97\n")
    assert libraries.gpu_models(tmp_path) == ["NVIDIA A100-SXM4-80GB"]
    assert libraries.gpu_models(tmp_path / "none") == []
