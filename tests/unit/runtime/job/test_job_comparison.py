"""Which nodes of a job differ, and in what words that is said."""

from __future__ import annotations

from typing import Any

import pytest

from provision_runtime.facts import libraries
from provision_runtime.job import comparison

FACTS: dict[str, Any] = {
    "environment": "a" * 64,
    "runtime": "1.0",
    "Python": "3.11.4",
    "architecture": "x86_64",
    "driver": "550.90.07",
    "GPUs": {"visible": 8, "models": ["NVIDIA A100-SXM4-80GB"]},
    "NCCL": {"NCCL_DEBUG": "WARN"},
    "kernel": "6.1.0",
    "glibc": "2.36",
    "CPUs": 64,
    "memlock limit": None,
    "InfiniBand adapters": ["mlx5_0"],
}


def nodes(**changes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """n1 to n4, with the facts that differ."""
    return {name: {**FACTS, **changes.get(name, {})} for name in ("n1", "n2", "n3", "n4")}


def required(facts: dict[str, dict[str, Any]]) -> list[str]:
    return comparison.differences(facts, comparison.REQUIRED_EQUAL)


def test_nodes_that_are_alike() -> None:
    assert required(nodes()) == []
    assert comparison.differences(nodes(), comparison.REPORTED) == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"driver": "535.54.03"}, "driver: 535.54.03 on n3, 550.90.07 on the other 3"),
        ({"driver": None}, "driver: unknown on n3, 550.90.07 on the other 3"),
        (
            {"environment": "b" * 64},
            "environment: bbbbbbbbbbbb on n3, aaaaaaaaaaaa on the other 3",
        ),
        ({"NCCL": {}}, "NCCL_DEBUG: not set on n3, WARN on the other 3"),
        (
            {"NCCL": {"NCCL_DEBUG": "WARN", "NCCL_IB_DISABLE": "1"}},
            "NCCL_IB_DISABLE: 1 on n3, not set on the other 3",
        ),
        (
            {"GPUs": {"visible": 7, "models": ["NVIDIA A100-SXM4-80GB"]}},
            "visible GPUs: 7 on n3, 8 on the other 3",
        ),
        (
            {"GPUs": {"visible": 8, "models": ["NVIDIA H100"]}},
            "GPU models: NVIDIA H100 on n3, NVIDIA A100-SXM4-80GB on the other 3",
        ),
    ],
)
def test_the_node_that_differs_is_named(change: dict[str, Any], sentence: str) -> None:
    assert required(nodes(n3=change)) == [sentence]


def test_without_a_majority_all_nodes_are_named() -> None:
    differing = nodes(n1={"Python": "3.11.9"}, n4={"Python": "3.11.9"})
    assert required(differing) == ["Python: 3.11.9 on n1, n4, 3.11.4 on n2, n3"]


def test_what_only_costs_speed_is_reported_and_ends_nothing() -> None:
    slow = nodes(n2={"kernel": "5.10", "memlock limit": 65536, "InfiniBand adapters": []})
    assert required(slow) == []
    assert comparison.differences(slow, comparison.REPORTED) == [
        "kernel: 5.10 on n2, 6.1.0 on the other 3",
        "memlock limit: 65536 on n2, unlimited on the other 3",
        "InfiniBand adapters: none on n2, mlx5_0 on the other 3",
    ]


def test_many_nodes_are_counted() -> None:
    facts = {
        f"n{number}": {**FACTS, "kernel": "5.10" if number < 20 else "6.1.0"}
        for number in range(50)
    }
    [sentence] = comparison.differences(facts, comparison.REPORTED)
    assert sentence == (
        "kernel: 5.10 on n0, n1, n2, n3, n4, n5, n6, n7 and 12 more, 6.1.0 on the other 30"
    )


@pytest.mark.parametrize(
    ("listed", "count"), [("0,1", 2), ("", 0), ("NoDevFiles", 0), ("-1", 0), ("0,-1,1", 1)]
)
def test_visible_gpus_are_those_of_the_scheduler(listed: str, count: int) -> None:
    assert comparison.visible_gpus({"CUDA_VISIBLE_DEVICES": listed}) == count


def test_problems_of_a_single_node(tmp_path: Any) -> None:
    facts = {**FACTS, "GPUs": {"visible": 1, "models": []}}
    script = str(tmp_path / "train.py")
    assert comparison.own_problems(facts, gpus=2, lock="c" * 64, script=script) == [
        "its environment is aaaaaaaaaaaa, not cccccccccccc, which was launched",
        "1 of 2 GPUs are visible",
        f"there is no {script}",
    ]
    (tmp_path / "train.py").write_text("")
    assert comparison.own_problems(facts, gpus=1, lock="a" * 64, script=script) == []


def test_facts_of_this_machine_have_every_compared_key() -> None:
    facts = comparison.collect()
    assert set(facts) == {*comparison.REQUIRED_EQUAL, *comparison.REPORTED}
    assert comparison.differences({"a": facts, "b": facts}, list(facts)) == []


def test_gpu_models_as_the_driver_lists_them(tmp_path: Any) -> None:
    for number, model in enumerate(("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB")):
        folder = tmp_path / f"proc/driver/nvidia/gpus/0000:0{number}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 97\n")
    assert libraries.gpu_models(tmp_path) == ["NVIDIA A100-SXM4-80GB"]
    assert libraries.gpu_models(tmp_path / "none") == []
