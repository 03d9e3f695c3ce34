"""Equal replies of many nodes as one line: `n[0001-0998]`."""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Mapping
from typing import TypeVar

from provision.adapters import clustershell

Value = TypeVar("Value", bound=Hashable)
# Text between the last bracket of an operand and its end.
_AFTER_BRACKETS = re.compile(r"\][^\[\],]+(,|$)")
_ADDRESS = re.compile(r"(?<![\w.])\d{1,3}(\.\d{1,3}){3}(?![\w.])")


def fold_equal(values: Mapping[str, Value]) -> list[tuple[str, Value]]:
    """Nodes with the same value as one node set; most nodes first, then by their first node."""
    groups: dict[Value, list[str]] = {}
    for node, value in values.items():
        groups.setdefault(value, []).append(node)
    folded = [(clustershell.fold(nodes), value) for value, nodes in groups.items()]
    folded.sort(key=lambda pair: (-len(groups[pair[1]]), min(groups[pair[1]])))
    return folded


def slurm_host_list(names: Collection[str]) -> str:
    """Names of nodes as Slurm reads them: folded, unless text follows the numbers. Slurm (22.05) takes
    no brackets there: `gpu[1-2].lab` is invalid."""
    folded = clustershell.fold(names)
    return ",".join(names) if _AFTER_BRACKETS.search(folded) else folded


def fold_messages(messages: Mapping[str, str]) -> list[tuple[str, str]]:
    """As `fold_equal`, where messages count as equal that differ only in the node's own name or an
    address: ssh names the host in most of its own. That of the first node stands for all."""
    kinds = {}
    examples: dict[str, str] = {}
    for node, message in messages.items():
        node_name = rf"(?<![\w.-]){re.escape(node)}(?![\w-])"
        kinds[node] = _ADDRESS.sub("ADDRESS", re.sub(node_name, "NODE", message))
        examples.setdefault(kinds[node], message)
    return [(nodes, examples[kind]) for nodes, kind in fold_equal(kinds)]
