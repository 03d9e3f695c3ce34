"""What is printed of a smoke test over nodes: the phases, every node, and what a search found."""

from __future__ import annotations

from collections.abc import Sequence

from provision.adapters import clustershell
from provision.cli.console import table, wrap_line
from provision.cli.smoke_output import phase_lines
from provision.cluster.failures import REASONS
from provision.workflow.smoke.isolation import Isolation
from provision.workflow.smoke.nodes_report import NodeRow, NodesResult, node_rows
from provision_runtime.report.table import name_ranks
from provision_runtime.report.text import format_count


def smoke_nodes_lines(result: NodesResult, width: int | None = None) -> list[str]:
    """width: of the terminal."""
    rows = node_rows(result)
    lines = wrap_line(_title(result), width)
    if result.whole is not None:
        if result.whole.report is not None:
            lines += phase_lines(result.whole.report, "  ")
        if result.whole.problem:
            lines += wrap_line(f"  {result.whole.problem}", width)
    lines += ["", *_node_lines(rows, width)]
    sentences = [*_advice_lines(result), *_search_lines(result), *_drain_lines(result)]
    if result.without_folder:
        phases = " and ".join(result.without_folder)
        sentences.append(f"not tested: {phases}; they need --set folder=DIR, which all nodes share")
    for sentence in sentences:
        lines += wrap_line(sentence, width)
    return [*lines, f"evidence: {result.evidence}"]


def _title(result: NodesResult) -> str:
    setting = [format_count(len(result.tested), "node")]
    if result.whole is not None:
        setting.append(format_count(sum(map(len, result.whole.ranks.values())), "rank"))
        report = result.whole.report
        if report is not None:
            setting.append(f"{report['backend']} on {report['device']}")
    if result.job:
        setting.append(f"job {result.job}")
    return f"smoke test on {result.selection.text}: {result.verdict} ({', '.join(setting)})"


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
        ranks = [rank for row in members for rank in row.ranks]
        nodes = clustershell.fold([row.node for row in members])
        cells.append((nodes, state, _ranks(ranks), text))
    head = ("node", "state", "ranks", "finding")
    return table(cells, head, width=width).splitlines()


def _advice_lines(result: NodesResult) -> list[str]:
    """What to do about nodes that could not be tested."""
    reasons = dict.fromkeys(failure.reason for failure in result.failures.values())
    return [f"  {reason} -> {REASONS[reason].advice}" for reason in reasons]


def _ranks(ranks: Sequence[int]) -> str:
    return name_ranks(sorted(ranks)).removeprefix("ranks ").removeprefix("rank ") if ranks else ""


def _search_lines(result: NodesResult) -> list[str]:
    isolation = result.isolation
    if isolation is None:
        return []
    lines = [""]
    for each in result.rounds:
        verdicts = [group.verdict for group in each.results.values()]
        counts = {verdict: verdicts.count(verdict) for verdict in dict.fromkeys(verdicts)}
        text = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        lines.append(f"tested {each.purpose}: {text}")
    return lines + _conclusion(isolation, len(result.tested))


def _conclusion(isolation: Isolation, count: int) -> list[str]:
    lines = []
    if isolation.bad_nodes:
        lines.append(f"bad: {clustershell.fold(isolation.bad_nodes)}")
    for first, second in isolation.bad_links:
        lines.append(f"bad link: {first} - {second}; both pass with other nodes")
    for nodes in isolation.bad_sets:
        lines.append(f"fail only together: {clustershell.fold(nodes)}")
    if isolation.suspects:
        suspects = clustershell.fold(isolation.suspects)
        if len(isolation.suspects) == count == 2:
            lines.append(f"{suspects} pass alone: the link is bad, or the network of one of them")
        else:
            lines.append(f"fail with others, cause unknown: {suspects}")
    if isolation.untested:
        lines.append(f"no result: {clustershell.fold(isolation.untested)}")
    if isolation.passing:
        lines.append(f"pass together: {clustershell.fold(isolation.passing)}")
    return lines


def _drain_lines(result: NodesResult) -> list[str]:
    if result.drain is None:
        return []
    lines = [f"drained {node}: {reason}" for node, reason in result.drain.drained.items()]
    lines += [f"not drained {node}: {why}" for node, why in result.drain.not_drained.items()]
    return lines or ["drained: none"]
