"""What `provision nodes` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from provision.cli.console import table, wrap_line
from provision.cli.node_sets import NodeSets, advice_lines, folded_lines
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
    """Nodes with equal main facts, problems or warnings as one line, then the advice for each reason
    once. environment: that they are for. width: of the terminal."""
    texts = {}
    warnings = {}
    racks: dict[str, list[str]] = {}
    for row in report:
        name = row.node.name
        messages = "; ".join(f"{problem.reason}: {problem.message}" for problem in row.problems)
        texts[name] = f"{row.verdict}: {messages or row.summary}"
        if row.verdict == "same":
            texts[name] = row.problems[0].message
        if row.warnings:
            warnings[name] = "; ".join(warning.message for warning in row.warnings)
        if row.node.rack:
            racks.setdefault(row.node.rack, []).append(name)
    sets = NodeSets(racks)
    lines = folded_lines(texts, width, sets) + folded_lines(warnings, width, sets, "warning: ")
    for line in advice_lines(
        failure for row in report for failure in (*row.problems, *row.warnings)
    ):
        lines += wrap_line(line, width)
    counts = Counter(row.verdict for row in report)
    parts = [f"{counts[kind]} {token}" for kind, token in VERDICTS.items() if counts[kind]]
    total = format_count(len(report), "node")
    purpose = f"{total} for {environment}" if environment else total
    return [*lines, *sets.lines(), f"{purpose}: {', '.join(parts)}"]


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
