"""The result of a smoke test over nodes, and its report: every node with what is known of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Literal, cast

from provision.cluster.failures import NodeFailure
from provision.cluster.inventory import Node, NodeSelection
from provision.core.dataclass import frozen
from provision.core.types import Verdict
from provision.workflow.smoke.isolation import Group, Isolation
from provision.workflow.smoke.node_groups import GroupResult, PreparedNode
from provision_runtime.report import model
from provision_runtime.report.findings import NODE_FAULTS

SCHEMA = 1
KIND = "smoke-nodes"
# named: a finding names it, but no search has shown that it is the cause.
NodeState = Literal["passed", "named", "tested", "bad", "suspect", "untested", "left out"]


@frozen
class Round:
    purpose: str
    results: Mapping[Group, GroupResult]


@frozen
class NodesResult:
    """Everything about one test over nodes.

    whole: the test of all nodes together; None if none could be tested. left_out: nodes that the
    engine has out of service. failures: nodes that could not be tested. isolation: what the search
    found; None without one. without_folder: phases that were skipped because there is no shared folder.
    evidence: the folder with reports and logs.
    """

    name: str
    selection: NodeSelection
    verdict: Verdict
    started_at: str
    duration_s: float
    job: str | None
    tested: tuple[PreparedNode, ...]
    left_out: tuple[Node, ...]
    failures: Mapping[str, NodeFailure]
    whole: GroupResult | None
    rounds: tuple[Round, ...]
    isolation: Isolation | None
    without_folder: tuple[str, ...]
    evidence: Path


@frozen
class NodeRow:
    """One node. ranks: of the test of all nodes. findings: ids. message: what is wrong, if
    anything is."""

    node: str
    host: str = ""
    ranks: tuple[int, ...] = ()
    gpus: int | None = None
    state: NodeState
    findings: tuple[str, ...] = ()
    message: str = ""


def node_rows(result: NodesResult) -> list[NodeRow]:
    """Every selected node, in the order: tested, could not be tested, left out."""
    rows = [_tested_row(result, prepared) for prepared in result.tested]
    for name, failure in result.failures.items():
        message = f"{failure.reason}: {failure.message}"
        rows.append(NodeRow(node=name, state="untested", message=message))
    for node in result.left_out:
        message = f"{node.state} ({node.reason})" if node.reason else node.state
        rows.append(NodeRow(node=node.name, gpus=node.gpus, state="left out", message=message))
    return rows


def _tested_row(result: NodesResult, prepared: PreparedNode) -> NodeRow:
    name, whole = prepared.node.name, result.whole
    assert whole is not None
    state = _state(name, whole, result.isolation)
    findings = [finding for finding in whole.findings if name in finding.nodes]
    message = "; ".join(finding.message for finding in findings)
    if state == "bad":
        tests = [test for tested in result.rounds for test in tested.results.values()]
        failed = [test for test in tests if name in test.group and test.verdict == model.FAIL]
        candidates = [
            finding for test in failed for finding in test.findings if finding.verdict == model.FAIL
        ]
        # The one that says most: a fault of a node before others, and one that names this node
        # before one of its group.
        main = max(
            candidates,
            key=lambda observed: (observed.id in NODE_FAULTS, name in observed.nodes),
            default=None,
        )
        if main is not None:
            findings.insert(0, main)
            message = main.message
    if state == "untested" and name in whole.failures:
        failure = whole.failures[name]
        message = f"{failure.reason}: {failure.message}"
    return NodeRow(
        node=name,
        host=prepared.host,
        ranks=whole.ranks[name],
        gpus=prepared.gpus,
        state=state,
        findings=tuple(dict.fromkeys(finding.id for finding in findings)),
        message=message,
    )


def _state(name: str, whole: GroupResult, isolation: Isolation | None) -> NodeState:
    if model.succeeded(whole.verdict):
        return "passed"
    if isolation is not None:
        states: dict[NodeState, tuple[str, ...]] = {
            "bad": isolation.bad_nodes,
            "untested": isolation.untested,
            "passed": isolation.passing,
            "suspect": isolation.suspects,
        }
        return next((state for state, nodes in states.items() if name in nodes), "tested")
    if name in whole.failures:
        return "untested"
    for finding in whole.findings:
        if name in finding.nodes and finding.verdict == model.FAIL:
            return "named"
    return "tested"


def document(result: NodesResult) -> dict[str, object]:
    """The report, by provision/schemas/smoke-nodes.schema.json."""
    isolation, whole = result.isolation, result.whole
    tests = [
        {
            "purpose": tested.purpose,
            "nodes": group.group,
            "verdict": group.verdict,
            "problem": group.problem,
            "findings": [asdict(finding) for finding in group.findings],
        }
        for tested in result.rounds
        for group in tested.results.values()
    ]
    content = {
        "schema": SCHEMA,
        "kind": KIND,
        "name": result.name,
        "on": result.selection.text,
        "job": result.job,
        "started_at": result.started_at,
        "duration_s": result.duration_s,
        "verdict": result.verdict,
        "nodes": [asdict(row) for row in node_rows(result)],
        "tests": tests,
        "isolation": None if isolation is None else asdict(isolation),
        "report": model.document(whole.report) if whole and whole.report else None,
    }
    # As it is read back: JSON has lists for tuples.
    return cast("dict[str, object]", json.loads(json.dumps(content)))
