"""What `provision nodes` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from provision.cli.console import table, wrap_line
from provision.cli.ship_output import NodeSets, advice_lines, folded_lines
from provision_runtime.report.text import format_count

if TYPE_CHECKING:
    from provision.cluster.fitness import NodeFitness, NodeVerdict
    from provision.cluster.inventory import Node, NodeDefaults, NodeSelection

# How nodes are reached, where the name of the transport does not tell it.
TRANSPORTS = {"kubernetes": "kubectl only", "local": "this machine", "exec": "simulated here"}

VERDICTS: Mapping[NodeVerdict, str] = {
    "fit": "fit",
    "unfit": "unfit",
    "unknown": "unknown",
    "same": "under another name",
}
NODE_FIELDS = (
    "name",
    "host",
    "engine",
    "address",
    "state",
    "gpus",
    "partition",
    "context",
    "rack",
    "zone",
)


def selection_lines(selection: NodeSelection, width: int | None = None) -> str:
    """A row for each kind of node: those with the same engine, transport, state and GPUs. width: of
    the terminal."""
    from provision.adapters.clustershell import fold
    from provision.cluster.folding import fold_equal

    rows = []
    kinds = {node.name: _kind(node, selection.defaults) for node in selection.nodes}
    for folded, kind in fold_equal(kinds):
        members = [node for node in selection.nodes if kinds[node.name] == kind]
        aliases = {name for node in members for name in node.names if name != node.name}
        racks = {node.rack for node in members if node.rack}
        row = (folded, str(len(members)), *kind, fold(sorted(racks)), fold(sorted(aliases)))
        rows.append([cell or "-" for cell in row])
    head = ("nodes", "count", "engine", "reached by", "state", "gpus", "racks", "other names")
    return table(rows, head, width=width)


def check_lines(
    report: Sequence[NodeFitness], environment: str = "", width: int | None = None
) -> list[str]:
    """Nodes with equal main facts or equal problems as one line, then the advice for each reason
    once. environment: that they are for. width: of the terminal."""
    from provision.cluster.failures import REASONS

    texts: dict[str, str] = {}
    warnings: dict[str, dict[str, str]] = {}
    racks: dict[str, list[str]] = {}
    for row in report:
        name = row.node.name
        messages = "; ".join(f"{problem.reason}: {problem.message}" for problem in row.problems)
        texts[name] = f"{row.verdict}: {messages or row.summary}"
        if row.verdict == "same":
            texts[name] = row.problems[0].message
        for warning in row.warnings:
            warnings.setdefault(warning.reason, {})[name] = warning.message
        if row.node.rack:
            racks.setdefault(row.node.rack, []).append(name)
    sets = NodeSets(racks)
    lines = folded_lines(texts, width, sets)
    for reason, by_node in warnings.items():
        lines += folded_lines(by_node, width, sets, "warning: ")
        lines += wrap_line(f"  {REASONS[reason].advice}", width, 0)
    for line in advice_lines(problem for row in report for problem in row.problems):
        lines += wrap_line(line, width)
    counts = Counter(row.verdict for row in report)
    parts = [f"{counts[kind]} {token}" for kind, token in VERDICTS.items() if counts[kind]]
    purpose = f" for {environment}" if environment else ""
    return [
        *lines,
        *sets.lines(),
        f"{format_count(len(report), 'node')}{purpose}: {', '.join(parts)}",
    ]


def _kind(node: Node, defaults: NodeDefaults) -> tuple[str, str, str, str]:
    from provision.cluster.remote import transport

    source, reason = node.partition or node.context, node.reason
    reached_by = transport(node, defaults)
    return (
        f"{node.engine} ({source})" if source else node.engine,
        TRANSPORTS.get(reached_by, reached_by),
        f"{node.state} ({reason})" if reason else node.state,
        f"{node.gpus} x {node.gpu_type or 'GPU'}" if node.gpus else "",
    )


def node_json(node: Node) -> dict[str, object]:
    return {field: getattr(node, field) for field in NODE_FIELDS}
