"""Majority, outliers and unknowns of facts: pure."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from provision.core.documents import DriftFact
from provision.verbs.drift.comparison import Value, compare
from provision_runtime.node.results import DriftFacts

GIB = 1 << 30


def observed(values: dict[str, Value], unread: dict[str, str] | None = None) -> DriftFacts:
    return {"facts": values, "unread": unread or {}}


def fact(name: str, values: dict[str, Value]) -> DriftFact:
    [compared], _ = compare({node: observed({name: value}) for node, value in values.items()})
    return compared


def deviating(compared: DriftFact) -> dict[str, str]:
    return {deviation["value"]: deviation["nodes"] for deviation in compared["deviations"]}


def test_the_majority_is_right() -> None:
    compared = fact("driver", {"n1": "535", "n2": "550", "n3": "535"})
    assert (compared["reference"], compared["count"]) == ("535", 2)
    assert deviating(compared) == {"550": "n2"}


def test_half_is_no_majority_and_makes_no_outlier_right() -> None:
    compared = fact("driver", {"n1": "535", "n2": "550", "n3": "535", "n4": "550"})
    assert (compared["reference"], compared["count"]) == (None, 0)
    assert deviating(compared) == {"535": "n[1,3]", "550": "n[2,4]"}


def test_most_deviating_nodes_first() -> None:
    values: dict[str, Value] = {f"n{number}": "a" for number in range(10)}
    values |= {"x1": "c", "x2": "b", "x3": "b"}
    assert list(deviating(fact("kernel", values))) == ["b", "c"]


def test_lacking_what_others_lack_too_is_the_same() -> None:
    compared = fact("aws_ofi_nccl", {"n1": None, "n2": None, "n3": "1.9.1"})
    assert (compared["reference"], deviating(compared)) == ("none", {"1.9.1": "n3"})


def test_a_node_without_the_environment_is_never_right() -> None:
    compared = fact("environment", {"n1": None, "n2": None, "n3": "train-1"})
    assert compared["reference"] == "train-1"
    assert deviating(compared) == {"not installed": "n[1-2]"}
    compared = fact("environment", {"n1": None, "n2": None})
    assert (compared["reference"], deviating(compared)) == (None, {"not installed": "n[1-2]"})


def test_unread_is_neither_same_nor_deviating() -> None:
    nodes = {
        "n1": observed({"driver": "535"}),
        "n2": observed({"driver": "535"}),
        "n3": observed({}, {"driver": "permission denied"}),
    }
    [compared], described = compare(nodes)
    assert (compared["count"], compared["deviations"]) == (2, [])
    assert compared["unread"] == [{"reason": "permission denied", "nodes": "n3", "count": 1}]
    assert [node["verdict"] for node in described.values()] == ["same", "same", "unknown"]


def test_a_setting_that_a_node_does_not_list_is_not_set_there() -> None:
    nodes = {
        "n1": observed({"setting:NCCL_IB_HCA": "mlx5"}),
        "n2": observed({"setting:NCCL_IB_HCA": "mlx5"}),
        "n3": observed({}),
    }
    [compared], _ = compare(nodes)
    assert (compared["title"], deviating(compared)) == ("NCCL_IB_HCA", {"not set": "n3"})


def test_memory_differs_by_more_than_firmware_reserves() -> None:
    values: dict[str, Value] = {"n1": 1000 * GIB, "n2": 1001 * GIB, "n3": 936 * GIB}
    assert deviating(fact("memory", values)) == {"936 GiB": "n3"}


def test_settings_and_distributions_follow_the_known_facts() -> None:
    values: dict[str, Value] = {
        "distribution:torch": "2.3.1",
        "setting:NCCL_DEBUG": "INFO",
        "kernel": "6.1",
    }
    facts, _ = compare({"n1": observed(values)})
    assert [each["name"] for each in facts] == [
        "kernel",
        "setting:NCCL_DEBUG",
        "distribution:torch",
    ]


@given(
    st.dictionaries(
        st.sampled_from([f"n{number}" for number in range(9)]),
        st.one_of(st.none(), st.sampled_from(["a", "b", "c"])),
        min_size=1,
    )
)
def test_every_node_agrees_or_deviates_exactly_once(values: dict[str, Value]) -> None:
    compared = fact("kernel", values)
    count = compared["count"]
    assert count + sum(each["count"] for each in compared["deviations"]) == len(values)
    if compared["reference"] is not None:
        assert 2 * count > len(values)
