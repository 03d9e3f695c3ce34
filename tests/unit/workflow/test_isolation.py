"""The search for a bad node or link: what it names, what it never blames, and how little it tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from provision.workflow.smoke.isolation import Group, GroupVerdict, Isolation, isolate


@dataclass
class Cluster:
    """Nodes with faults, which fail a test as such nodes do."""

    nodes: Group
    bad_alone: frozenset[str] = frozenset()
    bad_network: frozenset[str] = frozenset()
    bad_links: frozenset[frozenset[str]] = frozenset()
    bad_sets: frozenset[frozenset[str]] = frozenset()
    silent: frozenset[str] = frozenset()
    rounds: list[tuple[str, list[Group]]] = field(default_factory=list)

    def run(self, purpose: str, groups: Sequence[Group]) -> Mapping[Group, GroupVerdict]:
        used = [node for group in groups for node in group]
        assert len(used) == len(set(used)), "groups of one round have a node in common"
        assert groups
        self.rounds.append((purpose, list(groups)))
        return {group: self._verdict(set(group)) for group in groups}

    def _verdict(self, group: set[str]) -> GroupVerdict:
        if group & self.silent:
            return "unknown"
        fails = group & self.bad_alone or (len(group) > 1 and group & self.bad_network)
        broken = any(each <= group for each in (*self.bad_links, *self.bad_sets))
        return "fail" if fails or broken else "pass"

    def isolate(self) -> Isolation:
        return isolate(self.nodes, self.run)


def names(count: int) -> Group:
    return tuple(f"n{number}" for number in range(1, count + 1))


def link(first: str, second: str) -> frozenset[frozenset[str]]:
    return frozenset([frozenset([first, second])])


def test_healthy_nodes_are_tested_once() -> None:
    cluster = Cluster(names(4))
    assert cluster.isolate() == Isolation(passing=names(4))
    assert len(cluster.rounds) == 1


def test_node_that_fails_alone_is_bad_and_the_others_pass_without_it() -> None:
    cluster = Cluster(names(4), bad_alone=frozenset(["n3"]))
    assert cluster.isolate() == Isolation(bad_nodes=("n3",), passing=("n1", "n2", "n4"))


def test_node_with_a_bad_network_card_is_told_from_its_partner() -> None:
    cluster = Cluster(names(4), bad_network=frozenset(["n3"]))
    assert cluster.isolate() == Isolation(bad_nodes=("n3",), passing=("n1", "n2", "n4"))


def test_bad_link_between_neighbors_blames_neither_of_them() -> None:
    cluster = Cluster(names(4), bad_links=link("n1", "n2"))
    found = cluster.isolate()
    assert (found.bad_nodes, found.bad_links) == ((), (("n1", "n2"),))
    assert len(found.passing) == 3


def test_bad_link_between_nodes_that_are_no_pair_blames_nobody() -> None:
    found = Cluster(names(16), bad_links=link("n2", "n13")).isolate()
    assert found == Isolation(suspects=names(16))


def test_two_nodes_that_fail_only_together_are_both_suspects() -> None:
    found = Cluster(names(2), bad_links=link("n1", "n2")).isolate()
    assert found == Isolation(suspects=("n1", "n2"))


def test_fault_that_all_pairs_have_blames_nobody() -> None:
    found = Cluster(names(6), bad_network=frozenset(names(6))).isolate()
    assert found == Isolation(suspects=names(6))


def test_fault_of_the_whole_names_no_node() -> None:
    nodes = names(4)
    found = Cluster(nodes, bad_sets=frozenset([frozenset(nodes)])).isolate()
    assert found == Isolation(suspects=nodes)


def test_node_without_results_is_never_bad() -> None:
    found = Cluster(names(5), silent=frozenset(["n2"])).isolate()
    assert found == Isolation(untested=("n2",), passing=("n1", "n3", "n4", "n5"))


def test_single_bad_node() -> None:
    assert Cluster(names(1), bad_alone=frozenset(["n1"])).isolate() == Isolation(bad_nodes=("n1",))


def test_failure_that_does_not_come_again_blames_nobody() -> None:
    attempts = []

    def run(purpose: str, groups: Sequence[Group]) -> Mapping[Group, GroupVerdict]:
        attempts.append(purpose)
        once: GroupVerdict = "fail" if len(attempts) <= 2 else "pass"
        return dict.fromkeys(groups, once)

    found = isolate(names(4), run)
    assert (found.bad_nodes, found.bad_links) == ((), ())


def test_unknown_everywhere_names_nothing_bad() -> None:
    found = Cluster(names(4), silent=frozenset(names(4))).isolate()
    assert found == Isolation(untested=names(4))


@given(
    count=st.integers(5, 40),
    data=st.data(),
)
def test_a_few_bad_nodes_are_named_exactly(count: int, data: st.DataObject) -> None:
    nodes = names(count)
    # The good ones must be more than the bad ones: contrast needs partners that pass.
    picked = data.draw(st.lists(st.sampled_from(nodes), unique=True, max_size=(count - 1) // 4))
    alone = frozenset(picked[::2])
    cluster = Cluster(nodes, bad_alone=alone, bad_network=frozenset(picked[1::2]))
    found = cluster.isolate()
    assert set(found.bad_nodes) == set(picked)
    assert (found.bad_links, found.suspects) == ((), ())
    assert found.passing == tuple(node for node in nodes if node not in picked)
    assert len(cluster.rounds) <= 12


@given(count=st.integers(4, 40), data=st.data())
def test_a_bad_link_between_neighbors_is_named_exactly(count: int, data: st.DataObject) -> None:
    nodes = names(count)
    first = 2 * data.draw(st.integers(0, count // 2 - 1))
    found = Cluster(nodes, bad_links=link(*nodes[first : first + 2])).isolate()
    assert (found.bad_nodes, found.bad_links) == ((), (nodes[first : first + 2],))
    assert len(found.passing) == count - 1


@given(
    count=st.integers(1, 12),
    silent=st.sets(st.integers(1, 12)),
    bad=st.sets(st.integers(1, 12)),
    links=st.sets(st.tuples(st.integers(1, 12), st.integers(1, 12)), max_size=4),
)
def test_no_healthy_node_is_ever_called_bad(
    count: int, silent: set[int], bad: set[int], links: set[tuple[int, int]]
) -> None:
    cluster = Cluster(
        names(count),
        bad_network=frozenset(f"n{number}" for number in bad),
        silent=frozenset(f"n{number}" for number in silent),
        bad_links=frozenset(
            frozenset([f"n{first}", f"n{second}"]) for first, second in links if first != second
        ),
    )
    found = cluster.isolate()
    ends = {node for each in cluster.bad_links for node in each}
    assert set(found.bad_nodes) <= cluster.bad_network | ends
    assert not set(found.bad_nodes) & cluster.silent
    for pair in found.bad_links:
        assert frozenset(pair) in cluster.bad_links or set(pair) & cluster.bad_network
