"""The smoke test on groups of nodes: where the environment is on each, running the groups at once,
and judging what their ranks left.

A test needs nothing that the nodes share: the program that runs on a node returns what its ranks
wrote.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, cast

from provision.cluster import actions
from provision.cluster.failures import NodeFailure, message_line
from provision.cluster.inventory import Node, NodeDefaults
from provision.cluster.remote import NodeReply, run_action, transport
from provision.core.schema import schema_error
from provision.core.types import Verdict
from provision.workflow.smoke.isolation import Group, GroupVerdict
from provision_runtime.node.results import RanksResult
from provision_runtime.report import model

STAGE = "smoke"
PREPARE_S = 60.0
# What a node may take beyond the test's own time limit: Python, and torch from a cold disk.
STARTING_S = 120.0
RANKS_WITHOUT_GPU = 2
# Rank 0 writes the report; if it cannot, this rank does.
DEPUTY = 1
# What a rank reports only because another one is gone.
CONSEQUENCES = ("backend-error", "store-lost")


@dataclass(frozen=True, kw_only=True)
class PreparedNode:
    """A node that has the environment. address and port: for rank 0, if it is there."""

    node: Node
    python: str
    host: str
    address: str
    port: int
    gpus: int


@dataclass(frozen=True, kw_only=True)
class GroupFinding:
    """A finding of a test, with the names of the nodes that it is about."""

    id: str
    verdict: str
    phase: str
    nodes: tuple[str, ...]
    message: str
    advice: str


@dataclass(frozen=True, kw_only=True)
class GroupResult:
    """The test of one group. ranks: which node has which.

    report: the smoke report; None if no rank wrote a valid one. failures: nodes that did not
    answer. problem: why the verdict is unknown, if the report does not say it.
    """

    group: Group
    verdict: Verdict
    ranks: Mapping[str, tuple[int, ...]]
    report: Mapping[str, Any] | None = None
    findings: tuple[GroupFinding, ...] = ()
    failures: Mapping[str, NodeFailure] = field(default_factory=dict)
    problem: str = ""
    logs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def isolation_verdict(self) -> GroupVerdict:
        return "pass" if model.succeeded(self.verdict) else cast("GroupVerdict", self.verdict)


def prepare(
    nodes: Sequence[Node], defaults: NodeDefaults, environments: Sequence[PurePosixPath]
) -> tuple[dict[str, PreparedNode], dict[str, NodeFailure]]:
    """Which nodes have the environment in one of these folders, and why the others cannot be
    tested."""
    arguments = {
        "environments": [str(folder) for folder in environments],
        "rules": defaults.rules,
    }
    answers = run_action(
        nodes,
        actions.SMOKE_PREPARE,
        arguments,
        stage="prepare",
        timeout_s=PREPARE_S,
        defaults=defaults,
    )
    prepared, failures = {}, {}
    for answer in answers:
        if answer.failure is not None:
            failures[answer.node.name] = answer.failure
        elif answer.result is not None:
            prepared[answer.node.name] = PreparedNode(node=answer.node, **answer.result)
    return prepared, failures


def python_failures(
    nodes: Sequence[Node], defaults: NodeDefaults, environment: PurePosixPath
) -> dict[str, NodeFailure]:
    """Why nodes cannot start the Python of an environment: it is not there, or not safe."""
    arguments = {"environments": [str(environment)], "rules": defaults.rules}
    answers = run_action(
        nodes,
        actions.ENVIRONMENT_PYTHON,
        arguments,
        stage="prepare",
        timeout_s=PREPARE_S,
        defaults=defaults,
    )
    return {answer.node.name: answer.failure for answer in answers if answer.failure is not None}


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
    assignments = {}
    for group in groups:
        assignments.update(_assignments(group, prepared, ranks))
    common = {"arguments": list(arguments), "timeout_s": timeout_s + STARTING_S}

    def of_node(node: Node) -> Mapping[str, Any]:
        own = {node.name: assignments[node.name]}
        return {**common, "assignments": own, "name": node.name}

    def of_all(_: Node) -> Mapping[str, Any]:
        return {**common, "assignments": assignments}

    # A step of Slurm feeds one program to all of its nodes; they look themselves up in it.
    is_step = all(transport(node, defaults) == "srun" for node in nodes)
    answers = run_action(
        nodes,
        actions.SMOKE_RUN,
        of_all(nodes[0]) if is_step else of_node,
        stage=STAGE,
        timeout_s=timeout_s + 2 * STARTING_S,
        # All ranks must run at once: none can be left for later.
        defaults=dataclasses.replace(defaults, fanout=len(nodes)),
    )
    by_name = {answer.node.name: answer for answer in answers}
    results = {}
    for group in groups:
        group_ranks = {name: _rank_numbers(assignments[name]) for name in group}
        results[group] = judge(group, group_ranks, [by_name[name] for name in group])
    return results


def _assignments(
    group: Group, prepared: Mapping[str, PreparedNode], ranks: Mapping[str, int]
) -> dict[str, dict[str, Any]]:
    """What each node of a group must know to run its ranks."""
    head = prepared[group[0]]
    assignments = {}
    first_rank = 0
    for name in group:
        assignments[name] = {
            "python": prepared[name].python,
            "first_rank": first_rank,
            "ranks": ranks[name],
            "world_size": sum(ranks[each] for each in group),
            "address": head.address,
            "port": head.port,
        }
        first_rank += ranks[name]
    return assignments


def _rank_numbers(assignment: Mapping[str, Any]) -> tuple[int, ...]:
    first = assignment["first_rank"]
    return tuple(range(first, first + assignment["ranks"]))


def judge(
    group: Group, ranks: Mapping[str, tuple[int, ...]], answers: Sequence[NodeReply[RanksResult]]
) -> GroupResult:
    """The verdict on a group. Only a valid report of all ranks, which all ended well, is a pass."""
    results = {answer.node.name: answer.result for answer in answers if answer.result is not None}
    failures = {answer.node.name: answer.failure for answer in answers if answer.failure}
    node_of_rank = {rank: name for name, numbers in ranks.items() for rank in numbers}
    report, problem = _main_report(node_of_rank, results)
    findings = _findings(report, node_of_rank, results)
    verdict: Verdict = "unknown"
    if report is not None:
        verdict = cast("Verdict", report["verdict"])
    elif findings:
        verdict = "fail"
    if verdict == "unknown":
        problem = _failure_problem(failures) or problem
    elif verdict == "fail":
        problem = ""
    else:
        problem = _doubt(report or {}, node_of_rank, results, failures)
        if problem:
            verdict = "unknown"
    return GroupResult(
        group=group,
        verdict=verdict,
        ranks=ranks,
        report=report,
        findings=tuple(findings),
        failures=failures,
        problem=problem,
        logs={name: _own_logs(ranks[name], result["logs"]) for name, result in results.items()},
    )


def _own_logs(ranks: Sequence[int], logs: Mapping[str, str]) -> dict[str, str]:
    """Without those that a node has under the names of other nodes' ranks."""
    names = [f"rank{rank}.log" for rank in ranks]
    return {name: logs[name] for name in names if name in logs}


def _main_report(
    node_of_rank: Mapping[int, str], results: Mapping[str, RanksResult]
) -> tuple[Mapping[str, Any] | None, str]:
    """The report of rank 0, or of its deputy, or of the first rank that wrote one; else why there is
    none."""
    names = [node_of_rank[rank] for rank in (0, DEPUTY) if rank in node_of_rank]
    problem = "no rank wrote a report"
    for name in dict.fromkeys([*names, *results]):
        report = results[name]["report"] if name in results else None
        if report is None:
            continue
        problem = _report_problem(report)
        if not problem:
            return report, ""
        problem = f"the report of {name} is not valid: {problem}"
    for name, result in results.items():
        if result["ended_because"]:
            problem = message_line(f"{name}: {result['ended_because']}")
    return None, problem


def _failure_problem(failures: Mapping[str, NodeFailure]) -> str:
    """What to say about nodes that did not answer; empty if all did."""
    for name, failure in failures.items():
        return f"{name} did not answer: {failure.message}"
    return ""


def _report_problem(report: Mapping[str, Any]) -> str:
    violation = schema_error(report, "smoke-report")
    if violation is not None:
        return violation
    verdicts = [phase["verdict"] for phase in report["phases"]]
    expected = model.overall(verdicts)
    if report["verdict"] != expected:
        return f"its verdict is {report['verdict']}, but that of its phases is {expected}"
    return ""


def _doubt(
    report: Mapping[str, Any],
    node_of_rank: Mapping[int, str],
    results: Mapping[str, RanksResult],
    failures: Mapping[str, NodeFailure],
) -> str:
    """Why a report that says pass does not prove it; empty if it does."""
    if report["world_size"] != len(node_of_rank):
        return f"the report is of {report['world_size']} ranks instead of {len(node_of_rank)}"
    if failures:
        return _failure_problem(failures)
    for rank, name in node_of_rank.items():
        status = results[name]["statuses"].get(str(rank), "unknown")
        if status != 0:
            return f"rank {rank} on {name} ended with status {status}"
    return ""


def _findings(
    report: Mapping[str, Any] | None,
    node_of_rank: Mapping[int, str],
    results: Mapping[str, RanksResult],
) -> list[GroupFinding]:
    """The findings of the report; then those of ranks that ended without reaching the one that
    reports; then the crashes that nobody reported."""
    findings = []
    for phase in report["phases"] if report else ():
        for finding in phase["findings"]:
            findings.append(_group_finding(finding, phase["name"], finding["ranks"], node_of_rank))
    reported = {finding.id for finding in findings}
    for state in _last_states(results):
        phase_name = state["position"]["phase"]
        for finding in state["outcome"]["findings"]:
            own = finding["ranks"] or [state["rank"]]
            is_consequence = reported and finding["id"] in CONSEQUENCES
            if finding["id"] not in reported and not is_consequence:
                findings.append(_group_finding(finding, phase_name, own, node_of_rank))
    if not findings:
        findings += _crashes(results)
    return findings


def _last_states(results: Mapping[str, RanksResult]) -> list[Mapping[str, Any]]:
    return [
        state
        for result in results.values()
        for state in result["states"].values()
        if state is not None
    ]


def _group_finding(
    finding: Mapping[str, Any], phase: str, ranks: Sequence[int], node_of_rank: Mapping[int, str]
) -> GroupFinding:
    nodes = dict.fromkeys(node_of_rank[rank] for rank in ranks if rank in node_of_rank)
    return GroupFinding(
        id=finding["id"],
        verdict=finding.get("verdict", model.FAIL),
        phase=phase,
        nodes=tuple(nodes),
        message=message_line(finding["message"]),
        advice=message_line(finding["advice"]),
    )


def _crashes(results: Mapping[str, RanksResult]) -> list[GroupFinding]:
    """Ranks that a signal ended before they could report anything, unless we sent it."""
    findings = []
    for name, result in results.items():
        signals = {rank: -status for rank, status in result["statuses"].items() if status < 0}
        if signals and not result["ended_because"]:
            rank, number = next(iter(signals.items()))
            findings.append(
                GroupFinding(
                    id="rank-died",
                    verdict=model.FAIL,
                    phase="facts",
                    nodes=(name,),
                    message=f"the process of rank {rank} was ended by signal {number}",
                    advice="See its log; after signal 9, look for the OOM killer in dmesg.",
                )
            )
    return findings
