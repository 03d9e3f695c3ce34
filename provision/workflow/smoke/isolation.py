"""Finds the node or the link because of which a test of many nodes fails.

The nodes are tested alone, in pairs, and in halves; groups of one round have no node in common, so
they run at once. Blame needs contrast: a node is bad if it fails alone twice, or with two partners
of which one passes with others. What gave no result blames nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

from provision.core.dataclass import frozen

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


@frozen
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
    together = tuple(nodes)
    tests = _Tests(together, run_groups)
    if tests.latest_of(ALL_TOGETHER, together) == "pass":
        return Isolation(passing=together)
    alone = [(node,) for node in together]
    tests.run(ALONE, alone)
    failed = [group for group in alone if tests.latest(group) == "fail"]
    tests.repeat(ALONE_AGAIN, failed)
    for group in failed:
        if tests.latest(group) == "fail":
            tests.bad_alone.update(group)
    # Neighbors: they often share a switch, so a pair tests one thing at a time.
    candidates = tests.candidates()
    tests.run(PAIRS, list(zip(candidates[::2], candidates[1::2])))
    while groups := list(tests.new_pairs()):
        tests.run(SUSPECTS, groups)
    good = tests.good()
    links = [pair for pair in tests.failed_pairs() if good.issuperset(pair)]
    for batch in _without_common_nodes(links):
        tests.repeat(LINKS_AGAIN, batch)
    # Groups that fail only together.
    causes = [pair for pair in links if tests.latest(pair) == "fail"]
    passing: Group = ()
    # What is left together: it proves that all causes were found, or shows another one.
    for _ in range(MAX_SEARCHES):
        rest = _without_causes(tests.candidates(), causes)
        if len(rest) < 2 or not tests.good():
            break
        verdict = tests.latest_of(REST, rest)
        if verdict == "pass":
            passing = rest
        if verdict != "fail":
            break
        culprit = _smallest_failing(tests, rest)
        # Once more: what does not fail again is no cause.
        tests.repeat(HALVES, [culprit])
        if tests.latest(culprit) != "fail":
            break
        causes.append(culprit)
    bad, untested = tests.bad(), [node for node in together if tests.is_untested(node)]
    settled = {*bad, *untested, *tests.good(), *passing}
    # A single node can only be alone; nothing contradicts its own result.
    suspects = [node for node in together if node not in settled and len(together) > 1]
    return Isolation(
        bad_nodes=tuple(node for node in together if node in bad),
        bad_links=tuple((group[0], group[1]) for group in causes if len(group) == 2),
        bad_sets=tuple(group for group in causes if len(group) > 2),
        suspects=tuple(suspects),
        untested=tuple(untested),
        passing=passing,
    )


class _Tests:
    """Every verdict of a group, in the order of its tests, and what follows about the nodes."""

    def __init__(self, nodes: Group, run_groups: RunGroups) -> None:
        self._nodes = nodes
        self._run_groups = run_groups
        self._verdicts: dict[frozenset[str], list[GroupVerdict]] = {}
        self.bad_alone: set[str] = set()

    def run(self, purpose: str, groups: Sequence[Group]) -> None:
        """Tests groups, unless they were tested before."""
        self.repeat(purpose, [group for group in groups if frozenset(group) not in self._verdicts])

    def repeat(self, purpose: str, groups: Sequence[Group]) -> None:
        for group, verdict in self._run_groups(purpose, groups).items() if groups else ():
            self._verdicts.setdefault(frozenset(group), []).append(verdict)

    def latest(self, group: Group) -> GroupVerdict:
        return self._verdicts[frozenset(group)][-1]

    def latest_of(self, purpose: str, group: Group) -> GroupVerdict:
        self.run(purpose, [group])
        return self.latest(group)

    def partners(self, node: str, verdict: GroupVerdict | None = None) -> set[str]:
        """The partners with which a node was tested, or had this verdict."""
        partners: set[str] = set()
        for group, verdicts in self._verdicts.items():
            if len(group) == 2 and node in group and verdict in (None, verdicts[-1]):
                partners |= group - {node}
        return partners

    def good(self) -> set[str]:
        """Nodes that passed with another one."""
        good: set[str] = set()
        for group, verdicts in self._verdicts.items():
            if len(group) > 1 and verdicts[-1] == "pass":
                good |= group
        return good - self.bad_alone

    def bad(self) -> set[str]:
        good = self.good()
        bad = set(self.bad_alone)
        for node in self._nodes:
            failed_with = self.partners(node, "fail")
            if node not in good and len(failed_with) > 1 and failed_with & good:
                bad.add(node)
        return bad

    def is_untested(self, node: str) -> bool:
        alone = self._verdicts.get(frozenset([node]), ["pass"])[-1]
        if len(self._nodes) > 1 and alone == "unknown":
            return True
        return len(self.partners(node, "unknown")) >= MAX_UNKNOWN and node not in self.good()

    def candidates(self) -> list[str]:
        bad = self.bad()
        return [node for node in self._nodes if node not in bad and not self.is_untested(node)]

    def failed_pairs(self) -> list[Group]:
        return [
            tuple(sorted(group, key=self._nodes.index))
            for group, verdicts in self._verdicts.items()
            if len(group) == 2 and verdicts[-1] == "fail"
        ]

    def new_pairs(self) -> Iterator[Group]:
        """Each unresolved node with a partner that it was not tested with, good ones first."""
        good = self.good()
        candidates = self.candidates()
        suspects = [node for node in candidates if node not in good]
        free = [node for node in candidates if node in good or not good]
        paired: set[str] = set()
        for node in suspects:
            tried = self.partners(node)
            if node in paired or len(tried) >= MAX_PARTNERS:
                continue
            for partner in free:
                if partner not in tried and partner not in paired and partner != node:
                    paired |= {node, partner}
                    yield (node, partner)
                    break


def _without_causes(nodes: Sequence[str], causes: Sequence[Group]) -> Group:
    """The nodes without one of each cause: the one that most of these have in common."""
    rest = list(nodes)
    while remaining := [cause for cause in causes if set(cause) <= set(rest)]:
        rest.remove(max(rest, key=lambda node: sum(node in cause for cause in remaining)))
    return tuple(rest)


def _smallest_failing(tests: _Tests, group: Group) -> Group:
    """Part of a failing group that still fails, found by halving: about two tests for each
    doubling of the nodes."""
    while len(group) > 2:
        halves = _halves(group)
        tests.run(HALVES, halves)
        failing = [half for half in halves if tests.latest(half) == "fail"]
        if not failing:
            first, second = halves
            first = _reduced(tests, first, second)
            return (*first, *_reduced(tests, second, first))
        group = failing[0]
    return group


def _reduced(tests: _Tests, part: Group, complement: Group) -> Group:
    """Part of `part` that still fails together with the complement."""
    while len(part) > 1:
        for half in _halves(part):
            if tests.latest_of(HALVES, (*half, *complement)) == "fail":
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
