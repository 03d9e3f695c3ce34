"""What `provision nodes` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provision.cli.console import table, wrap_line
from provision.cli.ship_output import NodeSets, advice_lines, folded_lines
from provision_runtime.report.text import format_count

if TYPE_CHECKING:
    from provision.cluster.inventory import Node, NodeDefaults, NodeSelection
    from provision.verbs.nodes.nodes import NodesReport

# How nodes are reached, where the name of the transport does not tell it.
TRANSPORTS = {"kubernetes": "kubectl only", "local": "this machine", "exec": "simulated here"}

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


def selection_json(selection: NodeSelection) -> dict[str, object]:
    from provision.cluster.remote import transport

    rows = []
    for node in selection.nodes:
        rows.append({**_node_json(node), "reached_by": transport(node, selection.defaults)})
    return {"on": selection.text, "nodes": rows}


def check_lines(report: NodesReport, width: int | None = None) -> list[str]:
    """Nodes with equal main facts or equal problems as one line, then the advice for each reason
    once. width: of the terminal."""
    from provision.cluster.failures import REASONS

    texts: dict[str, str] = {}
    warnings: dict[str, dict[str, str]] = {}
    for node in report.nodes:
        name = node.node.name
        messages = "; ".join(f"{problem.reason}: {problem.message}" for problem in node.problems)
        texts[name] = f"{node.verdict}: {messages or node.summary}"
        if node.verdict == "same":
            texts[name] = node.problems[0].message
        for warning in node.warnings:
            warnings.setdefault(warning.reason, {})[name] = warning.message
    racks: dict[str, list[str]] = {}
    for row in report.nodes:
        racks.setdefault(row.node.rack, []).append(row.node.name)
    sets = NodeSets({rack: names for rack, names in racks.items() if rack})
    lines = folded_lines(texts, width, sets)
    for reason, by_node in warnings.items():
        lines += folded_lines(by_node, width, sets, "warning: ")
        lines += wrap_line(f"  {REASONS[reason].advice}", width, 0)
    problems = [problem for node in report.nodes for problem in node.problems]
    for line in advice_lines(problems):
        lines += wrap_line(line, width)
    return [*lines, *sets.lines(), _count_line(report)]


def check_json(report: NodesReport) -> dict[str, object]:
    rows = []
    for node in report.nodes:
        row = {
            **_node_json(node.node),
            "verdict": node.verdict,
            "problems": node.problems,
            "warnings": node.warnings,
            "facts": node.facts,
        }
        rows.append(row)
    return {"environment": report.environment, "is_fit": report.is_fit, "nodes": rows}


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


def _count_line(report: NodesReport) -> str:
    counts = dict.fromkeys(("fit", "unfit", "unknown", "same"), 0)
    for node in report.nodes:
        counts[node.verdict] += 1
    names = {"same": "under another name"}
    parts = [f"{count} {names.get(verdict, verdict)}" for verdict, count in counts.items() if count]
    purpose = f" for {report.environment}" if report.environment else ""
    return f"{format_count(len(report.nodes), 'node')}{purpose}: {', '.join(parts)}"


def _node_json(node: Node) -> dict[str, object]:
    return {field: getattr(node, field) for field in NODE_FIELDS}
