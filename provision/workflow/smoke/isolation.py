"""Finds the node or the link because of which a test of many nodes fails.

The nodes are tested alone, then in pairs; groups of one round have no node in common, so they run at
once. Blame needs contrast: a node is bad if it fails alone twice, or with two partners of which one
passes with others. What gave no result blames nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
# A first test may read torch from a cold file system.
FIRST_TESTS = (ALL_TOGETHER, ALONE, ALONE_AGAIN)
PAIRS = "in pairs"
SUSPECTS = "suspects with other partners"
LINKS_AGAIN = "pairs of good nodes that failed, again"
REST = "the others together"
# A node that failed with so many partners, or gave no result so often, is not tried again.
MAX_PARTNERS = 3
MAX_UNKNOWN = 2


@frozen
class Isolation:
    """What was found.

    bad_links: both nodes pass with others, but not with one another. suspects: failed, but nothing
    says which of them is bad. untested: nodes that gave no result. passing: the nodes that passed
    together in the end.
    """

    bad_nodes: tuple[str, ...] = ()
    bad_links: tuple[Group, ...] = ()
    suspects: tuple[str, ...] = ()
    untested: tuple[str, ...] = ()
    passing: Group = ()


def isolate(nodes: Sequence[str], run_groups: RunGroups) -> Isolation:
    """Test the nodes together and, if they do not pass, search for the cause."""
    together = tuple(nodes)
    tests = _Tests(together, run_groups)
    tests.run(ALL_TOGETHER, [together])
    if tests.verdicts[frozenset(together)] == "pass":
        return Isolation(passing=together)
    alone = [(node,) for node in together]
    if len(together) > 1:
        tests.run(ALONE, alone)
    failed = tests.failed(alone)
    tests.run(ALONE_AGAIN, failed)
    tests.bad_alone = {node for (node,) in tests.failed(failed)}
    # Neighbors: they often share a switch, so a pair tests one thing at a time.
    candidates = tests.candidates()
    tests.run(PAIRS, list(zip(candidates[::2], candidates[1::2])))
    while groups := list(tests.new_pairs()):
        tests.run(SUSPECTS, groups)
    good = tests.good()
    pairs = [
        tuple(sorted(group, key=together.index)) for group in tests.verdicts if len(group) == 2
    ]
    links = [pair for pair in tests.failed(pairs) if good.issuperset(pair)]
    for pair in links:
        # Once more: what does not fail again is no cause.
        tests.run(LINKS_AGAIN, [pair])
    links = tests.failed(links)
    # The others together prove that all causes were found.
    rest = tuple(node for node in tests.candidates() if node not in {pair[0] for pair in links})
    verdict: GroupVerdict = "unknown"
    if good and len(rest) > 1:
        tests.run(REST, [rest])
        verdict = tests.verdicts[frozenset(rest)]
    bad, untested = tests.bad(), tests.untested()
    passing = rest if verdict == "pass" else ()
    settled = {*bad, *untested, *passing, *(() if verdict == "fail" else good)}
    # A single node can only be alone; nothing contradicts its own result.
    suspects = [node for node in together if node not in settled and len(together) > 1]
    return Isolation(
        bad_nodes=tuple(node for node in together if node in bad),
        bad_links=tuple(links),
        suspects=tuple(suspects),
        untested=tuple(node for node in together if node in untested),
        passing=passing,
    )


class _Tests:
    """The latest verdict of every group, and what follows about the nodes."""

    def __init__(self, nodes: Group, run_groups: RunGroups) -> None:
        self._nodes = nodes
        self._run_groups = run_groups
        self.verdicts: dict[frozenset[str], GroupVerdict] = {}
        self.bad_alone: set[str] = set()

    def run(self, purpose: str, groups: Sequence[Group]) -> None:
        for group, verdict in self._run_groups(purpose, groups).items() if groups else ():
            self.verdicts[frozenset(group)] = verdict

    def failed(self, groups: Iterable[Group]) -> list[Group]:
        return [group for group in groups if self.verdicts.get(frozenset(group)) == "fail"]

    def partners(self, node: str, *verdicts: GroupVerdict) -> set[str]:
        """The partners with which a node had one of these verdicts."""
        pairs = [group for group in self.verdicts if len(group) == 2 and node in group]
        return {
            partner
            for pair in pairs
            if self.verdicts[pair] in verdicts
            for partner in pair - {node}
        }

    def good(self) -> set[str]:
        """Nodes that passed with another one."""
        return {node for node in self._nodes if self.partners(node, "pass")}

    def bad(self) -> set[str]:
        good = self.good()
        bad = set(self.bad_alone)
        for node in self._nodes:
            failed_with = self.partners(node, "fail")
            if node not in good and len(failed_with) > 1 and failed_with & good:
                bad.add(node)
        return bad

    def untested(self) -> set[str]:
        silent = {node for node in self._nodes if self.verdicts.get(frozenset([node])) == "unknown"}
        unknown = {
            node for node in self._nodes if len(self.partners(node, "unknown")) >= MAX_UNKNOWN
        }
        return silent | unknown - self.good()

    def candidates(self) -> list[str]:
        settled = self.bad() | self.untested()
        return [node for node in self._nodes if node not in settled]

    def new_pairs(self) -> Iterator[Group]:
        """Each unresolved node with a partner that it was not tested with, good ones first."""
        good = self.good()
        candidates = self.candidates()
        free = [node for node in candidates if node in good or not good]
        paired: set[str] = set()
        for node in candidates:
            tried = self.partners(node, "pass", "fail", "unknown")
            if node in good | paired or len(tried) >= MAX_PARTNERS:
                continue
            for partner in free:
                if partner not in tried | paired | {node}:
                    paired |= {node, partner}
                    yield (node, partner)
                    break
