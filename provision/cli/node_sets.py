"""Texts of many nodes: folded to node sets, in aligned columns, with the advice for each reason once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from provision.cli.console import wrap_line
from provision_runtime.report.text import format_count

if TYPE_CHECKING:
    from provision.cluster.failures import NodeFailure

# A longer one moves the text of its line.
WIDEST_NODE_SET = 30
# A longer one is printed once, at the end of the output.
LONGEST_NODE_SET = 60


class NodeSets:
    """The long node sets of one output: where they are named it says `250 nodes [1]`, and all their
    nodes are printed once, at the end. racks: the nodes of each; a set that is one is named so."""

    def __init__(self, racks: Mapping[str, Sequence[str]] | None = None) -> None:
        from provision.adapters import clustershell

        self._numbers: dict[str, int] = {}
        named = racks or {}
        self._racks = {clustershell.fold(nodes): rack for rack, nodes in named.items()}

    def short(self, nodes: str) -> str:
        from provision.adapters import clustershell

        if nodes in self._racks:
            return f"rack {self._racks[nodes]} ({format_count(clustershell.count(nodes), 'node')})"
        if len(nodes) <= LONGEST_NODE_SET:
            return nodes
        number = self._numbers.setdefault(nodes, len(self._numbers) + 1)
        return f"{format_count(clustershell.count(nodes), 'node')} [{number}]"

    def lines(self) -> list[str]:
        return [f"[{number}] {nodes}" for nodes, number in self._numbers.items()]


def folded_lines(
    texts: Mapping[str, str], width: int | None, sets: NodeSets, label: str = ""
) -> list[str]:
    """`n[0001-0998]  fit: ...`, most nodes first, in aligned columns. width: of the terminal."""
    from provision.cluster.folding import fold_messages

    rows = [(sets.short(nodes), text) for nodes, text in fold_messages(texts)]
    columns = min(max((len(nodes) for nodes, _ in rows), default=0), WIDEST_NODE_SET)
    lines = []
    for nodes, text in rows:
        indent = len(label) + columns + 2
        lines += wrap_line(f"{label}{nodes:{columns}}  {text}", width, indent)
    return lines


def failure_lines(failures: Mapping[str, NodeFailure], width: int | None) -> list[str]:
    """Nodes that did not do what they were asked, and the advice for each reason once."""
    texts = {name: f"{failure.reason}: {failure.message}" for name, failure in failures.items()}
    sets = NodeSets()
    lines = folded_lines(texts, width, sets)
    for line in advice_lines(failures.values()):
        lines += wrap_line(line, width)
    return [*lines, *sets.lines()]


def advice_lines(failures: Iterable[NodeFailure]) -> list[str]:
    """What to do, once for each reason."""
    from provision.cluster.failures import REASONS

    reasons = dict.fromkeys(failure.reason for failure in failures)
    return [f"{reason}: {REASONS[reason].meaning}. {REASONS[reason].advice}" for reason in reasons]
