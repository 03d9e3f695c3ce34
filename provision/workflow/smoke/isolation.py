"""Finds the node or the link because of which a test of many nodes fails.

The nodes are tested alone, in pairs, and in halves; groups of one round have no node in common, so
they run at once. Blame needs contrast: a node is bad if it fails alone twice, or with two partners
of which one passes with others. What gave no result blames nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Group = tuple[str, ...]
GroupVerdict = Literal["pass", "fail", "unknown"]
# Tests groups that have no node in common, and returns a verdict for each. The text says why they
# are tested.
RunGroups = Callable[[str, Sequence[Group]], Mapping[Group, GroupVerdict]]

ALL_TOGETHER = "all together"
ALONE = "each alone"
ALONE_AGAIN = "those that failed, alone again"
PAIRS = "in pairs"
SUSPECTS = "suspects with other partners"
LINKS_AGAIN = "pairs of good nodes that failed, again"
REST = "the others together"
HALVES = "in halves"
# A node that failed with so many partners, or gave no result so often, is not tried again.
MAX_PARTNERS = 3
MAX_UNKNOWN = 2
# Faults that pairs of neighbors do not show are searched for one after the other.
MAX_SEARCHES = 4


@dataclass(frozen=True, kw_only=True)
class Isolation:
    """What was found.

    bad_links: both nodes pass with others, but not with one another. bad_sets: nodes that fail
    only together. suspects: failed, but nothing says which of them is bad. untested: nodes that gave
    no result. passing: the nodes that passed together in the end.
    """

    bad_nodes: tuple[str, ...] = ()
    bad_links: tuple[tuple[str, str], ...] = ()
    bad_sets: tuple[Group, ...] = ()
    suspects: tuple[str, ...] = ()
    untested: tuple[str, ...] = ()
    passing: Group = ()


def isolate(nodes: Sequence[str], run_groups: RunGroups) -> Isolation:
    """Test the nodes together and, if they do not pass, search for the cause."""
    search = _Search(tuple(nodes), run_groups)
    if search.passes(ALL_TOGETHER, search.nodes):
        return Isolation(passing=search.nodes)
    search.test_alone()
    search.test_pairs()
    search.resolve_suspects()
    search.confirm_links()
    search.test_rest()
    return search.conclusion()


class _Search:
    def __init__(self, nodes: Group, run_groups: RunGroups) -> None:
        self.nodes = nodes
        self._run_groups = run_groups
        # Every verdict of a group, in the order of its tests.
        self._verdicts: dict[frozenset[str], list[GroupVerdict]] = {}
        self._bad_alone: set[str] = set()
        self._bad_links: list[tuple[str, str]] = []
        self._bad_sets: list[Group] = []
        self._passing: Group = ()

    def passes(self, purpose: str, group: Group) -> bool:
        """Tests a group, unless it was tested before."""
        return self._tested(purpose, [group])[group] == "pass"

    def test_alone(self) -> None:
        self._tested(ALONE, [(node,) for node in self.nodes])
        failed = [(node,) for node in self.nodes if self._latest((node,)) == "fail"]
        self._test_again(ALONE_AGAIN, failed)
        for group in failed:
            if self._latest(group) == "fail":
                self._bad_alone.update(group)

    def test_pairs(self) -> None:
        """Neighbors: they often share a switch, so a pair tests one thing at a time."""
        candidates = self._candidates()
        self._tested(PAIRS, list(zip(candidates[::2], candidates[1::2])))

    def resolve_suspects(self) -> None:
        """Tests nodes that have not passed in a pair with nodes that have."""
        while groups := list(self._new_pairs()):
            self._tested(SUSPECTS, groups)

    def confirm_links(self) -> None:
        good = self._good()
        failed = [pair for pair in self._failed_pairs() if good.issuperset(pair)]
        for batch in _without_common_nodes(failed):
            self._test_again(LINKS_AGAIN, batch)
        self._bad_links += [pair for pair in failed if self._latest(pair) == "fail"]

    def test_rest(self) -> None:
        """Tests what is left together: it proves that all causes were found, or shows that there
        is another one."""
        for _ in range(MAX_SEARCHES):
            # The nodes without the bad ones, and without one node of each bad link and set: the
            # one that most of these have in common.
            broken = [set(group) for group in (*self._bad_links, *self._bad_sets)]
            left_out = {node for node in self.nodes if node not in self._candidates()}
            broken = [group for group in broken if not group & left_out]
            while broken:
                nodes = [node for node in self.nodes if any(node in group for group in broken)]
                worst = max(nodes, key=lambda node: sum(node in group for group in broken))
                left_out.add(worst)
                broken = [group for group in broken if worst not in group]
            rest = tuple(node for node in self.nodes if node not in left_out)
            if len(rest) < 2 or not self._good():
                return
            if self.passes(REST, rest):
                self._passing = rest
                return
            if self._latest(rest) != "fail":
                return
            culprit = self._smallest_failing(rest)
            # Once more: what does not fail again is no cause.
            self._test_again(HALVES, [culprit])
            if self._latest(culprit) != "fail":
                return
            if len(culprit) == 2:
                self._bad_links.append((culprit[0], culprit[1]))
            else:
                self._bad_sets.append(culprit)

    def conclusion(self) -> Isolation:
        bad = self._bad()
        untested = [node for node in self.nodes if self._is_untested(node)]
        settled = {*bad, *untested, *self._good(), *self._passing}
        if len(self.nodes) == 1:
            # Alone is all that this node can be; nothing contradicts its own result.
            settled.update(self.nodes)
        suspects = [node for node in self.nodes if node not in settled]
        return Isolation(
            bad_nodes=tuple(node for node in self.nodes if node in bad),
            bad_links=tuple(self._bad_links),
            bad_sets=tuple(self._bad_sets),
            suspects=tuple(suspects),
            untested=tuple(untested),
            passing=self._passing,
        )

    def _tested(self, purpose: str, groups: Sequence[Group]) -> Mapping[Group, GroupVerdict]:
        self._test_again(
            purpose, [group for group in groups if frozenset(group) not in self._verdicts]
        )
        return {group: self._latest(group) for group in groups}

    def _test_again(self, purpose: str, groups: Sequence[Group]) -> None:
        if not groups:
            return
        for group, verdict in self._run_groups(purpose, groups).items():
            self._verdicts.setdefault(frozenset(group), []).append(verdict)

    def _latest(self, group: Group) -> GroupVerdict:
        return self._verdicts[frozenset(group)][-1]

    def _partners(self, node: str, verdict: GroupVerdict | None = None) -> set[str]:
        """The partners with which a node was tested, or had this verdict."""
        partners: set[str] = set()
        for group, verdicts in self._verdicts.items():
            if len(group) == 2 and node in group and verdict in (None, verdicts[-1]):
                partners |= group - {node}
        return partners

    def _good(self) -> set[str]:
        """Nodes that passed with another one."""
        good: set[str] = set()
        for group, verdicts in self._verdicts.items():
            if len(group) > 1 and verdicts[-1] == "pass":
                good |= group
        return good - self._bad_alone

    def _bad(self) -> set[str]:
        good = self._good()
        bad = set(self._bad_alone)
        for node in self.nodes:
            failed_with = self._partners(node, "fail")
            if node not in good and len(failed_with) > 1 and failed_with & good:
                bad.add(node)
        return bad

    def _is_untested(self, node: str) -> bool:
        alone = self._verdicts.get(frozenset([node]), ["pass"])[-1]
        if len(self.nodes) > 1 and alone == "unknown":
            return True
        return len(self._partners(node, "unknown")) >= MAX_UNKNOWN and node not in self._good()

    def _candidates(self) -> list[str]:
        bad = self._bad()
        return [node for node in self.nodes if node not in bad and not self._is_untested(node)]

    def _failed_pairs(self) -> list[tuple[str, str]]:
        pairs = []
        for group, verdicts in self._verdicts.items():
            if len(group) == 2 and verdicts[-1] == "fail":
                first, second = sorted(group, key=self.nodes.index)
                pairs.append((first, second))
        return pairs

    def _new_pairs(self) -> Iterator[Group]:
        """Each unresolved node with a partner that it was not tested with, good ones first."""
        good = self._good()
        candidates = self._candidates()
        suspects = [node for node in candidates if node not in good]
        free = [node for node in candidates if node in good]
        if not good:
            free = list(suspects)
        paired: set[str] = set()
        for node in suspects:
            tried = self._partners(node)
            if node in paired or len(tried) >= MAX_PARTNERS:
                continue
            for partner in free:
                if partner not in tried and partner not in paired and partner != node:
                    paired |= {node, partner}
                    yield (node, partner)
                    break

    def _smallest_failing(self, group: Group) -> Group:
        """Part of a failing group that still fails, found by halving: about two tests for each
        doubling of the nodes."""
        while len(group) > 2:
            halves = _halves(group)
            verdicts = self._tested(HALVES, halves)
            failing = [half for half in halves if verdicts[half] == "fail"]
            if not failing:
                first, second = halves
                first = self._reduced(first, second)
                return (*first, *self._reduced(second, first))
            group = failing[0]
        return group

    def _reduced(self, part: Group, complement: Group) -> Group:
        """Part of `part` that still fails together with the complement."""
        while len(part) > 1:
            for half in _halves(part):
                group = (*half, *complement)
                if self._tested(HALVES, [group])[group] == "fail":
                    part = half
                    break
            else:
                return part
        return part


def _halves(group: Group) -> list[Group]:
    middle = len(group) // 2
    return [group[:middle], group[middle:]]


def _without_common_nodes(pairs: Sequence[Group]) -> Iterator[list[Group]]:
    """The pairs in batches in which no node occurs twice."""
    remaining = list(pairs)
    while remaining:
        batch: list[Group] = []
        used: set[str] = set()
        for pair in remaining:
            if not used & set(pair):
                used |= set(pair)
                batch.append(pair)
        remaining = [pair for pair in remaining if pair not in batch]
        yield batch
