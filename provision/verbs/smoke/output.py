"""What is printed of a smoke test over nodes: the phases, every node, and what a search found."""

from __future__ import annotations

from collections.abc import Sequence

from provision.adapters import clustershell
from provision.cli.console import table, wrap_line
from provision.cli.smoke_output import phase_lines
from provision.cluster.failures import REASONS
from provision.workflow.smoke.isolation import Isolation
from provision.workflow.smoke.nodes_report import NodeRow, NodesResult, node_rows
from provision_runtime.report import model
from provision_runtime.report.findings import NODE_FAULTS
from provision_runtime.report.table import name_ranks
from provision_runtime.report.text import format_count


def smoke_nodes_lines(result: NodesResult, width: int | None = None) -> list[str]:
    setting = [format_count(len(result.tested), "node")]
    phases = []
    whole = result.whole
    if whole is not None:
        setting.append(format_count(sum(map(len, whole.ranks.values())), "rank"))
        if whole.report is not None:
            setting.append(f"{whole.report.backend} on {whole.report.device}")
            phases = phase_lines(model.document(whole.report), "  ")
        if whole.problem:
            phases += wrap_line(f"  {whole.problem}", width)
    if result.job:
        setting.append(f"job {result.job}")
    title = f"smoke test on {result.selection.text}: {result.verdict} ({', '.join(setting)})"
    lines = [*wrap_line(title, width), *phases, "", *_node_lines(node_rows(result), width)]
    # What to do about nodes that could not be tested.
    reasons = dict.fromkeys(failure.reason for failure in result.failures.values())
    sentences = [f"  {reason} -> {REASONS[reason].advice}" for reason in reasons]
    if result.isolation is not None:
        sentences += _search_lines(result, result.isolation)
    if result.without_folder:
        names = " and ".join(result.without_folder)
        sentences.append(
            f"not tested: {names}; they need --set folder=DIR with a folder that all nodes share"
        )
    for sentence in sentences:
        lines += wrap_line(sentence, width)
    return [*lines, f"evidence: {result.evidence}"]


def _node_lines(rows: Sequence[NodeRow], width: int | None) -> list[str]:
    """One row for all nodes of which the same is to be said, with the message of the first."""
    groups: dict[tuple[str, tuple[str, ...], str], list[NodeRow]] = {}
    for row in rows:
        # Of nodes that could not be tested, the message begins with the reason, and names the node.
        message = row.message.partition(":")[0] if row.state == "untested" else row.message
        groups.setdefault((row.state, row.findings, message), []).append(row)
    cells = []
    for (state, findings, _), members in groups.items():
        text = members[0].message
        if findings:
            text = f"{', '.join(findings)}: {text}"
        ranks = sorted(rank for row in members for rank in row.ranks)
        names = name_ranks(ranks).partition(" ")[2] if ranks else ""
        cells.append((clustershell.fold([row.node for row in members]), state, names, text))
    return table(cells, ("node", "state", "ranks", "finding"), width=width).splitlines()


def _search_lines(result: NodesResult, isolation: Isolation) -> list[str]:
    """What the table of nodes does not show."""
    lines = [""]
    for first, second in isolation.bad_links:
        lines.append(f"bad link: {first} - {second}; both pass with other nodes")
    if len(isolation.suspects) == len(result.tested) == 2:
        suspects = clustershell.fold(isolation.suspects)
        lines.append(f"{suspects} pass alone: the link is bad, or the network of one of them")
    for row in node_rows(result):
        for id in NODE_FAULTS.intersection(row.findings[:1]):
            if row.state == "bad" and result.job:
                command = f"scontrol update NodeName={row.node} State=DRAIN"
                lines.append(f"to drain it: {command} Reason='provision smoke: {id}'")
    return lines
