"""Which of the nodes that a search called bad are taken out of service. Pure.

A node is drained only for a fault of its own that was measured: a deadline that passed may mean a
slow file system, and what is wrong with an environment is repaired by shipping it again. More bad
nodes than the limit usually have one cause, so then none is drained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from provision.cluster.inventory import Node
from provision.core.dataclass import frozen
from provision.workflow.smoke.isolation import Isolation
from provision.workflow.smoke.node_groups import GroupFinding, GroupResult
from provision_runtime.report.findings import NODE_FAULTS, TIME_FINDINGS

REASON = "provision smoke: "


@frozen
class DrainDecision:
    """Node -> the reason that its engine shows; node -> why it stays in service."""

    drained: Mapping[str, str] = field(default_factory=dict)
    not_drained: Mapping[str, str] = field(default_factory=dict)


def decide(
    isolation: Isolation, results: Sequence[GroupResult], left_out: Sequence[Node], drain_max: int
) -> DrainDecision:
    """left_out: nodes that are out of service already; those that we drained count for the limit."""
    drained, not_drained = {}, {}
    for node in isolation.bad_nodes:
        finding = main_finding(node, results)
        if finding is None:
            not_drained[node] = "no finding says what is wrong with it"
        elif finding.id in TIME_FINDINGS:
            not_drained[node] = f"{finding.id} may mean that it is only slow"
        elif finding.id not in NODE_FAULTS:
            not_drained[node] = f"{finding.id} is not a fault of the node itself"
        else:
            drained[node] = f"{REASON}{finding.id}"
    earlier = sum(node.reason.startswith(REASON) for node in left_out)
    if len(drained) + earlier > drain_max:
        limit = f"{len(drained)} bad nodes"
        if earlier:
            limit += f" and {earlier} drained earlier"
        why = f"{limit} are more than {drain_max} (`drain_max` of nodes.yml): so many usually have one cause"
        not_drained.update(dict.fromkeys(drained, why))
        drained = {}
    return DrainDecision(drained=drained, not_drained=not_drained)


def main_finding(node: str, results: Sequence[GroupResult]) -> GroupFinding | None:
    """The finding that says most about a bad node: a fault of a node before others, and one that
    names this node before one of its group."""
    candidates = []
    for result in results:
        if node in result.group and result.verdict == "fail":
            candidates += [finding for finding in result.findings if finding.verdict == "fail"]

    def importance(finding: GroupFinding) -> tuple[bool, bool, bool]:
        return (
            finding.id in NODE_FAULTS,
            finding.id not in TIME_FINDINGS,
            node in finding.nodes,
        )

    return max(candidates, key=importance, default=None)
