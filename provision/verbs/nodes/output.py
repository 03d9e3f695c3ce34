"""What `provision nodes` prints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from provision.cli.console import table, wrap_line
from provision.cli.ship_output import folded_lines
from provision_runtime.report.text import format_count

if TYPE_CHECKING:
    from provision.cluster.failures import NodeFailure
    from provision.cluster.fitness import NodeReport
    from provision.cluster.inventory import Node, NodeDefaults, NodeSelection
    from provision.verbs.nodes.nodes import NodesReport


def selection_lines(selection: NodeSelection, width: int | None = None) -> str:
    """A row for each kind of node: those with the same engine, way, state and GPUs. width: of the
    terminal."""
    from provision.cluster.folding import fold_equal

    by_name = {node.name: node for node in selection.nodes}
    rows = []
    kinds = {node.name: _kind(node, selection.defaults) for node in selection.nodes}
    for nodes, kind in fold_equal(kinds):
        members = [by_name[name] for name, own_kind in kinds.items() if own_kind == kind]
        rows.append((nodes, str(len(members)), *kind, _other_names(members)))
    head = ("nodes", "count", "engine", "reached by", "state", "gpus", "other names")
    return table([_dashes(row) for row in rows], head, width=width)


def selection_json(selection: NodeSelection) -> dict[str, Any]:
    from provision.cluster.remote import transport

    rows = []
    for node in selection.nodes:
        row = _node_json(node)
        row["reached_by"] = transport(node, selection.defaults)
        rows.append(row)
    return {"on": selection.text, "nodes": rows}


def check_lines(report: NodesReport, width: int | None = None) -> list[str]:
    """Nodes with equal main facts or equal problems as one line, then the advice for each reason
    once. width: of the terminal."""
    texts = {}
    for each in report.nodes:
        text = f"fit: {each.summary}" if each.verdict == "fit" else _problem_text(each)
        texts[each.node.name] = text
    lines = folded_lines(texts, width)
    warnings = _by_reason((each.node.name, each.warnings) for each in report.nodes)
    for reason, messages in warnings.items():
        lines += folded_lines(messages, width, "warning: ")
        lines += wrap_line(f"  {_advice(reason)}", width, 0)
    problems = _by_reason((each.node.name, each.problems) for each in report.nodes)
    for reason in problems:
        lines += wrap_line(f"{reason}: {_meaning(reason)}. {_advice(reason)}", width)
    lines.append(_count_line(report))
    return lines


def check_json(report: NodesReport) -> dict[str, Any]:
    rows = []
    for each in report.nodes:
        row = _node_json(each.node)
        row["verdict"] = each.verdict
        row["problems"], row["warnings"] = each.problems, each.warnings
        row["facts"] = each.facts
        rows.append(row)
    return {"environment": report.environment, "is_fit": report.is_fit, "nodes": rows}


def _kind(node: Node, defaults: NodeDefaults) -> tuple[str, str, str, str]:
    from provision.cluster.remote import transport

    engine: str = node.engine
    if node.partition:
        engine = f"{node.engine} ({node.partition})"
    elif node.context:
        engine = f"{node.engine} ({node.context})"
    way = transport(node, defaults)
    if way == "kubernetes":
        way = "kubectl only"
    elif way == "local":
        way = "this machine"
    elif way == "exec":
        way = "simulated here"
    gpus = ""
    if node.gpus:
        gpus = f"{node.gpus} x {node.gpu_type or 'GPU'}"
    state = node.state
    if node.reason:
        state += f" ({node.reason})"
    return engine, way, state, gpus


def _other_names(nodes: Sequence[Node]) -> str:
    from provision.adapters.clustershell import fold

    aliases = {name for node in nodes for name in node.names.all() if name != node.name}
    return fold(sorted(aliases)) if aliases else ""


def _dashes(row: Iterable[str]) -> tuple[str, ...]:
    return tuple(cell or "-" for cell in row)


def _problem_text(report: NodeReport) -> str:
    if report.verdict == "same":
        return report.problems[0].message
    messages = "; ".join(f"{each.reason}: {each.message}" for each in report.problems)
    return f"{report.verdict}: {messages}"


def _by_reason(
    failures: Iterable[tuple[str, Sequence[NodeFailure]]],
) -> dict[str, dict[str, str]]:
    """Reason -> node -> message."""
    reasons: dict[str, dict[str, str]] = {}
    for name, node_failures in failures:
        for failure in node_failures:
            reasons.setdefault(failure.reason, {})[name] = failure.message
    return reasons


def _meaning(reason: str) -> str:
    from provision.cluster.failures import REASONS

    return REASONS[reason].meaning


def _advice(reason: str) -> str:
    from provision.cluster.failures import REASONS

    return REASONS[reason].advice


def _count_line(report: NodesReport) -> str:
    counts = dict.fromkeys(("fit", "unfit", "unknown", "same"), 0)
    for each in report.nodes:
        counts[each.verdict] += 1
    names = {"same": "under another name"}
    parts = [f"{count} {names.get(verdict, verdict)}" for verdict, count in counts.items() if count]
    purpose = f" for {report.environment}" if report.environment else ""
    return f"{format_count(len(report.nodes), 'node')}{purpose}: {', '.join(parts)}"


def _node_json(node: Node) -> dict[str, Any]:
    return {
        "name": node.name,
        "names": node.names,
        "engine": node.engine,
        "address": node.address,
        "state": node.state,
        "gpus": node.gpus,
        "partition": node.partition,
        "context": node.context,
    }
