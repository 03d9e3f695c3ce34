"""The smoke test on groups of nodes: where the environment is on each, running the groups at once,
and judging what their ranks left.

A test needs nothing that the nodes share: the program that runs on a node returns what its ranks
wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import PurePosixPath
from typing import cast

from provision.cluster import actions
from provision.cluster.actions import Action, ResultT
from provision.cluster.failures import NodeFailure, message_line
from provision.cluster.inventory import Node, NodeDefaults, Nodes
from provision.cluster.remote import NodeReply, run_action, transport
from provision.core.dataclass import frozen
from provision.core.types import Verdict
from provision.workflow.smoke.isolation import Group, GroupVerdict
from provision.workflow.smoke.runner import parse_report
from provision_runtime.node.results import Assignment, RanksResult
from provision_runtime.report import model

PREPARE_S = 60.0
# What a node may take beyond the test's own time limit: Python, and torch from a cold disk.
STARTING_S = 120.0
RANKS_WITHOUT_GPU = 2
# What a rank reports only because another one is gone.
CONSEQUENCES = ("backend-error", "store-lost")


# What the nodes' ranks left, by node.
Results = Mapping[str, RanksResult]


@frozen
class PreparedNode:
    """A node that has the environment. address and port: for rank 0, if it is there."""

    node: Node
    python: str
    host: str
    address: str
    port: int
    gpus: int


@frozen
class GroupFinding:
    id: str
    verdict: str
    phase: str
    nodes: tuple[str, ...]
    message: str
    advice: str


@frozen
class GroupResult:
    """The test of one group. ranks: which node has which.

    report: None if no rank wrote a valid one. failures: nodes that did not respond. problem: why the
    verdict is unknown, if the report does not show it.
    """

    group: Group
    verdict: Verdict
    ranks: Mapping[str, tuple[int, ...]]
    report: model.Report | None = None
    findings: tuple[GroupFinding, ...] = ()
    failures: Mapping[str, NodeFailure] = field(default_factory=dict)
    problem: str = ""
    logs: Mapping[str, str] = field(default_factory=dict)

    @property
    def isolation_verdict(self) -> GroupVerdict:
        return "pass" if model.succeeded(self.verdict) else cast("GroupVerdict", self.verdict)


def prepare(
    nodes: Nodes,
    defaults: NodeDefaults,
    environments: Sequence[PurePosixPath],
    action: Action[ResultT],
) -> list[NodeReply[ResultT]]:
    arguments = {"environments": list(map(str, environments)), "rules": defaults.rules}
    return run_action(
        nodes, action, arguments, stage="prepare", timeout_s=PREPARE_S, defaults=defaults
    )


def python_failures(
    nodes: Nodes, defaults: NodeDefaults, environment: PurePosixPath
) -> dict[str, NodeFailure]:
    """Why nodes cannot start the Python of an environment: it is not there, or not safe."""
    replies = prepare(nodes, defaults, [environment], actions.ENVIRONMENT_PYTHON)
    return {reply.node.name: reply.failure for reply in replies if reply.failure is not None}


def ranks_per_node(
    nodes: Iterable[PreparedNode], requested: int | None, backend: str
) -> dict[str, int]:
    """As many as requested, else one per GPU; without GPUs two, which is the fewest that can test
    anything on one node."""
    counts = {}
    for prepared in nodes:
        gpus = 0 if backend == "gloo" else prepared.gpus
        counts[prepared.node.name] = requested or gpus or RANKS_WITHOUT_GPU
    return counts


def run_groups(
    groups: Sequence[Group],
    prepared: Mapping[str, PreparedNode],
    ranks: Mapping[str, int],
    arguments: Sequence[str],
    timeout_s: float,
    defaults: NodeDefaults,
) -> dict[Group, GroupResult]:
    """Test groups that have no node in common, at once.

    ranks: of each node. arguments: of the smoke test. timeout_s: its own time limit.
    """
    nodes = [prepared[name].node for group in groups for name in group]
    assignments: dict[str, Assignment] = {}
    for group in groups:
        assignments.update(_assignments(group, prepared, ranks))
    common = {"arguments": list(arguments), "timeout_s": timeout_s + STARTING_S}

    def arguments_of(node: Node) -> Mapping[str, object]:
        return {**common, "assignments": {node.name: assignments[node.name]}, "name": node.name}

    # A step of Slurm feeds one program to all of its nodes; they look themselves up in it.
    is_step = all(transport(node, defaults) == "srun" for node in nodes)
    replies = run_action(
        nodes,
        actions.SMOKE_RUN,
        {**common, "assignments": assignments} if is_step else arguments_of,
        stage="smoke",
        timeout_s=timeout_s + 2 * STARTING_S,
        # All ranks must run at once: none can be left for later.
        defaults=replace(defaults, fanout=len(nodes)),
    )
    by_name = {reply.node.name: reply for reply in replies}
    results = {}
    for group in groups:
        group_ranks = {}
        for name in group:
            first = assignments[name]["first_rank"]
            group_ranks[name] = tuple(range(first, first + ranks[name]))
        results[group] = judge(group, group_ranks, [by_name[name] for name in group])
    return results


def _assignments(
    group: Group, prepared: Mapping[str, PreparedNode], ranks: Mapping[str, int]
) -> dict[str, Assignment]:
    head = prepared[group[0]]
    assignments: dict[str, Assignment] = {}
    first_rank = 0
    for name in group:
        assignments[name] = {
            "python": prepared[name].python,
            "first_rank": first_rank,
            "ranks": ranks[name],
            "world_size": sum(ranks[member] for member in group),
            "address": head.address,
            "port": head.port,
        }
        first_rank += ranks[name]
    return assignments


def judge(
    group: Group,
    ranks: Mapping[str, tuple[int, ...]],
    replies: Sequence[NodeReply[RanksResult]],
) -> GroupResult:
    """The verdict on a group. Only a valid report of all ranks, which all ended well, is a pass."""
    results = {reply.node.name: reply.result for reply in replies if reply.result is not None}
    failures = {reply.node.name: reply.failure for reply in replies if reply.failure is not None}
    silence = [f"{name} did not respond: {item.message}" for name, item in failures.items()]
    node_of_rank = {rank: name for name, numbers in ranks.items() for rank in numbers}
    report, problem = _main_report(results)
    findings = _findings(report, node_of_rank, results)
    verdict = cast("Verdict", report.verdict if report else "unknown")
    if verdict == "unknown" and any(finding.verdict == model.FAIL for finding in findings):
        verdict = "fail"
    if verdict == "fail":
        problem = ""
    elif silence:
        verdict, problem = "unknown", silence[0]
    elif report is not None and verdict != "unknown":
        problem = _contradiction(report, node_of_rank, results)
        verdict = "unknown" if problem else verdict
    # A node may also have logs under the names of other nodes' ranks.
    node_of_log = {f"rank{rank}.log": name for rank, name in node_of_rank.items()}
    logs = {
        log: text
        for name, result in results.items()
        for log, text in result["logs"].items()
        if node_of_log.get(log) == name
    }
    return GroupResult(
        group=group,
        verdict=verdict,
        ranks=ranks,
        report=report,
        findings=tuple(findings),
        failures=failures,
        problem=problem,
        logs=logs,
    )


def _main_report(results: Results) -> tuple[model.Report | None, str]:
    """The first report that names a failure, else the first; or why there is none. Rank 0 writes it,
    or a rank of a node that lost it."""
    reports = []
    problem = "no rank wrote a report"
    for name, result in results.items():
        try:
            if result["report"] is not None:
                reports.append(parse_report(result["report"]))
        except model.ReportUnreadable as error:
            problem = f"the report of {name} is not valid: {error}"
        if result["ended_because"]:
            problem = message_line(f"{name}: {result['ended_because']}")
    reports.sort(key=lambda report: report.verdict != model.FAIL)
    return (reports[0], "") if reports else (None, problem)


def _contradiction(report: model.Report, node_of_rank: Mapping[int, str], results: Results) -> str:
    """Why a report that says pass does not prove it; empty if it does."""
    if report.world_size != len(node_of_rank):
        return f"the report is of {report.world_size} ranks instead of {len(node_of_rank)}"
    for rank, name in node_of_rank.items():
        status = results[name]["statuses"].get(str(rank), "unknown")
        if status != 0:
            return f"rank {rank} on {name} ended with status {status}"
    return ""


def _findings(
    report: model.Report | None, node_of_rank: Mapping[int, str], results: Results
) -> list[GroupFinding]:
    """The findings of the report; then those of ranks that ended without reaching the one that
    reports; or else the crashes that no rank reported."""
    findings: list[GroupFinding] = []

    def add(
        phase: str, verdict: str, id: str, ranks: Iterable[int], message: str, advice: str
    ) -> None:
        finding = GroupFinding(
            id=id,
            verdict=verdict,
            phase=phase,
            nodes=tuple(
                dict.fromkeys(node_of_rank[rank] for rank in ranks if rank in node_of_rank)
            ),
            message=message_line(message),
            advice=message_line(advice),
        )
        findings.append(finding)

    for phase in report.phases if report else ():
        for item in phase.findings:
            add(phase.name, item.verdict, item.id, item.ranks, item.message, item.advice)
    reported = {finding.id for finding in findings}
    ignored = reported.union(CONSEQUENCES if reported else ())
    for result in results.values():
        for state in filter(None, result["states"].values()):
            phase_name, rank = state["position"]["phase"], state["rank"]
            for left in state["outcome"]["findings"]:
                if left["id"] not in ignored:
                    about = left["ranks"] or [rank]
                    add(phase_name, model.FAIL, left["id"], about, left["message"], left["advice"])
    if not any(finding.verdict == model.FAIL for finding in findings):
        # Ranks that a signal ended before they could report anything, unless we sent it.
        for result in results.values():
            signals = {rank: -status for rank, status in result["statuses"].items() if status < 0}
            if result["ended_because"]:
                continue
            for name, number in list(signals.items())[:1]:
                message = f"the process of rank {name} was ended by signal {number}"
                advice = "See its log; after signal 9, look for the OOM killer in dmesg."
                add("facts", model.FAIL, "rank-died", [int(name)], message, advice)
    return findings
