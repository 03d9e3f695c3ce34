"""Equal answers of many nodes as one line: `n[0001-0998]`."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

from provision.adapters import clustershell
from provision.cluster.failures import NodeFailure

Value = TypeVar("Value", bound=Hashable)


def fold_equal(values: Mapping[str, Value]) -> list[tuple[str, Value]]:
    """Nodes with the same value as one node set; most nodes first, then by their first node."""
    groups = _groups(values)
    folded = [(clustershell.fold(nodes), value) for value, nodes in groups.items()]
    sizes = {value: len(nodes) for value, nodes in groups.items()}
    first = {value: min(nodes) for value, nodes in groups.items()}
    folded.sort(key=lambda pair: (-sizes[pair[1]], first[pair[1]]))
    return folded


def majority(values: Mapping[str, Value]) -> Value | None:
    """The value that more than half of the nodes have; None if there is no such value."""
    for value, nodes in _groups(values).items():
        if 2 * len(nodes) > len(values):
            return value
    return None


def fold_failures(failures: Iterable[tuple[str, NodeFailure]]) -> list[tuple[str, NodeFailure]]:
    """Failures of nodes as node sets: one entry for each stage and reason, with the message of its
    first node."""
    reasons: dict[str, tuple[str, str]] = {}
    examples: dict[tuple[str, str], NodeFailure] = {}
    for node, failure in failures:
        key = (failure.stage, failure.reason)
        reasons[node] = key
        examples.setdefault(key, failure)
    return [(nodes, examples[key]) for nodes, key in fold_equal(reasons)]


def _groups(values: Mapping[str, Value]) -> dict[Value, list[str]]:
    groups: dict[Value, list[str]] = {}
    for node, value in values.items():
        groups.setdefault(value, []).append(node)
    return groups
