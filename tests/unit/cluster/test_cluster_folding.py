"""Equal answers of many nodes as one line."""

from __future__ import annotations

import pytest

from provision.cluster.folding import (
    fold_equal,
    fold_messages,
    slurm_host_list,
)

hypothesis = pytest.importorskip("hypothesis")
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402


def test_most_nodes_first() -> None:
    values = {f"n{number:04}": "2.28" for number in range(1, 999)}
    values |= {"n0042": "2.17", "n0999": "2.36", "n1000": "2.36"}
    assert fold_equal(values) == [
        ("n[0001-0041,0043-0998]", "2.28"),
        ("n[0999-1000]", "2.36"),
        ("n0042", "2.17"),
    ]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["n1", "n2", "n3", "x5"], "n[1-3],x5"),
        (["r1n1", "r1n2", "r2n1", "r2n2"], "r[1-2]n[1-2]"),
        # By scontrol of 22.05, "Invalid hostlist" when folded.
        (["gpu1.lab", "gpu3.lab"], "gpu1.lab,gpu3.lab"),
        (["n1a", "n2a", "x1"], "n1a,n2a,x1"),
        (["n1.lab", "x1"], "n1.lab,x1"),
    ],
)
def test_lists_of_hosts_as_slurm_reads_them(names: list[str], expected: str) -> None:
    assert slurm_host_list(names) == expected


def test_of_equal_groups_that_of_the_first_node_comes_first() -> None:
    values = {"b": 1, "a": 2, "c": 1, "d": 2}
    assert [value for _, value in fold_equal(values)] == [2, 1]


def test_messages_that_differ_only_in_the_name_of_the_node() -> None:
    """A rack without power is one line, not forty."""
    texts = {}
    for number in range(1, 41):
        texts[f"n{number:02}"] = f"ssh: connect to host n{number:02} port 22: No route to host"
    for number in (41, 42):
        texts[f"n{number}"] = f"ssh: connect to host 10.0.0.{number} port 22: Connection refused"
    texts["n43"] = "/opt: 12 MiB are free"
    texts["n44"] = "/opt: 13 MiB are free"
    assert fold_messages(texts) == [
        ("n[01-40]", "ssh: connect to host n01 port 22: No route to host"),
        ("n[41-42]", "ssh: connect to host 10.0.0.41 port 22: Connection refused"),
        ("n43", "/opt: 12 MiB are free"),
        ("n44", "/opt: 13 MiB are free"),
    ]


def test_a_node_is_no_part_of_another_name() -> None:
    texts = {"n1": "n1 and n11 are the same machine", "n2": "n2 and n11 are the same machine"}
    assert fold_messages(texts) == [("n[1-2]", "n1 and n11 are the same machine")]
    assert len(fold_messages({"n1": "no n11", "n2": "no n1"})) == 2


@given(st.dictionaries(st.from_regex(r"n[1-9][0-9]?", fullmatch=True), st.integers(0, 3)))
def test_folding_keeps_every_node_once(values: dict[str, int]) -> None:
    from provision.adapters.clustershell import expand

    unfolded = {}
    for nodes, value in fold_equal(values):
        for node in expand(nodes):
            assert node not in unfolded
            unfolded[node] = value
    assert unfolded == values
