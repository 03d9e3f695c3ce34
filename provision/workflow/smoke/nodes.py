"""`provision smoke --on`: the smoke test over nodes, the search for the one that makes it fail, and
draining it where that is asked for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath

from provision.adapters import clustershell
from provision.adapters.slurm import allocations
from provision.adapters.slurm import nodes as slurm_nodes
from provision.cluster.failures import NodeFailure
from provision.cluster.inventory import Node, NodeDefaults, NodeSelection
from provision.core.atomic import atomic_write
from provision.core.errors import CheckFailed, InvalidSpec
from provision.core.types import Verdict
from provision.workflow.context import Context
from provision.workflow.passport import record_smoke_over_nodes
from provision.workflow.plan import BuildRequest, Plan, make_plan
from provision.workflow.smoke import drain_policy, isolation
from provision.workflow.smoke import node_groups as groups_smoke
from provision.workflow.smoke import nodes_report as smoke_nodes_report
from provision.workflow.smoke import runner as smoke_runner
from provision.workflow.smoke.drain_policy import DrainDecision
from provision.workflow.smoke.isolation import Group, GroupVerdict, Isolation
from provision.workflow.smoke.node_groups import GroupResult, PreparedNode
from provision.workflow.smoke.nodes_report import NodesResult, Round
from provision.workflow.smoke.runner import SmokeRequest
from provision_runtime.report import model
from provision_runtime.report.text import format_count

FOLDER = "nodes"
REPORT = "nodes.json"
# How states of Slurm begin in which no job starts on a node (sinfo(1), NODE STATE CODES).
OUT_OF_SERVICE = ("drain", "maint", "fail", "inval")
# The allocation must last for the rounds of a search. Most need four; it is given back at its end.
ROUNDS = 6
# Of a search's later tests. The deadline of a first test allows for a cold file system.
SEARCH_RENDEZVOUS_S = 60.0
# Phases that write files which all ranks must see.
PHASES_WITH_SHARED_FOLDER = ("filesystem", "checkpoint")


@dataclass(frozen=True, kw_only=True)
class NodesRequest:
    """Which nodes to test, and what to do if they fail.

    count: as many of the selection, None for all. pairs: search for the bad node or link. drain:
    take bad nodes out of service, unless there are more than drain_max. queue_s: how long to wait
    for Slurm. job_s: the time limit of Slurm's job; None for what the tests may need at most.
    """

    selection: NodeSelection
    count: int | None = None
    pairs: bool = False
    drain: bool = False
    drain_max: int = 1
    queue_s: float = 600.0
    job_s: float | None = None


def smoke_nodes(context: Context, request: BuildRequest, nodes: NodesRequest) -> NodesResult:
    """Test an environment on nodes."""
    plan = make_plan(context, request)
    smoke_request = plan.smoke_request
    without_folder = _phases_without_folder(smoke_request)
    smoke_request = dataclasses.replace(smoke_request, skip=(*smoke_request.skip, *without_folder))
    _check(smoke_request, nodes)
    smoke_runner.check(smoke_request)
    usable, left_out = _usable_nodes(nodes)
    out = (smoke_request.out or context.folders.smoke(plan.name)).absolute() / FOLDER
    shutil.rmtree(out, ignore_errors=True)  # of an earlier test
    out.mkdir(parents=True)
    run = _NodesRun(context, plan, smoke_request, nodes, out, without_folder)
    with _reach(nodes, usable, plan.name, smoke_request) as (defaults, job):
        result = run.test(usable, left_out, defaults, job)
    document = smoke_nodes_report.document(result)
    atomic_write(out / REPORT, json.dumps(document, indent=2) + "\n")
    if plan.smoke_request.is_whole:
        facts = (document["report"] or {}).get("facts", {})
        record_smoke_over_nodes(context, plan, document, facts.get("lock_hash"))
    return result


def _phases_without_folder(request: SmokeRequest) -> tuple[str, ...]:
    """The phases to skip because no folder is named that all nodes share."""
    if request.folder is not None:
        return ()
    phases = [phase for phase in PHASES_WITH_SHARED_FOLDER if phase not in request.skip]
    if not request.only:
        return tuple(phases)
    for phase in phases:
        if phase in request.only:
            raise InvalidSpec(
                f"The setting only={phase} on several nodes needs a folder that all of them share.",
                advice="Name it with --set folder=DIR.",
            )
    return ()


def _check(request: SmokeRequest, nodes: NodesRequest) -> None:
    if request.baseline is not None or request.expect is not None:
        option = "--baseline" if request.baseline is not None else "The setting expect"
        raise InvalidSpec(
            f"{option} works on this machine only.",
            advice="Leave it out; the report has the bandwidths.",
        )
    engines = {node.engine for node in nodes.selection.nodes}
    if nodes.drain and engines != {"slurm"}:
        raise InvalidSpec(
            "--drain needs nodes of Slurm.", advice="Select them with --on slurm:PARTITION."
        )
    if "kubernetes" in engines:
        raise InvalidSpec(
            "Kubernetes nodes run only pods, so the smoke test is a job there.",
            advice="Start it with `provision launch`: docs/smoke-nodes.md has the command.",
        )


def _usable_nodes(request: NodesRequest) -> tuple[list[Node], list[Node]]:
    """The nodes to test, and those that their engine has out of service. Of more nodes than
    requested, those that wait for work come first."""
    usable: list[Node] = []
    left_out: list[Node] = []
    for node in request.selection.nodes:
        (left_out if _is_out_of_service(node) else usable).append(node)
    if not usable:
        states = sorted({node.state for node in left_out})
        raise CheckFailed(
            f"No node of `{request.selection.text}` can be tested: all are {', '.join(states)}.",
            advice="`sinfo -R` has the reasons; `scontrol update NodeName=N State=RESUME` resumes.",
        )
    if request.count is None:
        return usable, left_out
    if request.count > len(usable):
        raise InvalidSpec(
            f"--nodes {request.count}, but `{request.selection.text}` has "
            f"{format_count(len(usable), 'usable node')}.",
            advice=f"{len(left_out)} are out of service." if left_out else "Select more.",
        )
    usable.sort(key=lambda node: not node.state.startswith("idle"))
    return usable[: request.count], left_out


def _is_out_of_service(node: Node) -> bool:
    if node.state == "reserved":
        # For others, unless the user's own jobs go into a reservation.
        return "SBATCH_RESERVATION" not in os.environ
    return not node.responds or node.state.startswith(OUT_OF_SERVICE)


@contextlib.contextmanager
def _reach(
    request: NodesRequest, nodes: Sequence[Node], name: str, smoke_request: SmokeRequest
) -> Iterator[tuple[NodeDefaults, str | None]]:
    """How commands reach the nodes: ssh; for nodes of Slurm a job that holds them meanwhile, unless
    this runs in one. Its number, if it was made here."""
    defaults = request.selection.defaults
    in_job = slurm_nodes.allocation() is not None
    if not any(node.engine == "slurm" for node in nodes):
        yield defaults, None
    elif in_job:
        yield dataclasses.replace(defaults, via="srun"), None
    else:
        rounds = ROUNDS if request.pairs else 1
        test_s = smoke_request.timeout_s + 2 * groups_smoke.STARTING_S
        allocation_request = allocations.AllocationRequest(
            nodes=[node.name for node in nodes],
            partition=_partition(nodes),
            gpus=min(node.gpus or 0 for node in nodes),
            name=f"provision-smoke-{name}",
            time_s=request.job_s or rounds * test_s + groups_smoke.PREPARE_S,
            queue_s=request.queue_s,
        )
        with allocations.allocate(allocation_request) as allocation:
            yield (
                dataclasses.replace(
                    defaults,
                    via="srun",
                    allocated=",".join(allocation.nodes),
                    srun_options=allocation.srun_options,
                ),
                allocation.job,
            )


def _partition(nodes: Sequence[Node]) -> str:
    partitions = sorted({node.partition for node in nodes if node.engine == "slurm"})
    others = [node.name for node in nodes if node.engine != "slurm"]
    if len(partitions) > 1 or others:
        names = [f"partition {name}" for name in partitions] + others[:3]
        raise InvalidSpec(
            f"One job of Slurm cannot have nodes of {', '.join(names)}.",
            advice="Select the nodes of one partition.",
        )
    return partitions[0]


class _NodesRun:
    """One call of the command: its rounds, and the files that they leave."""

    def __init__(
        self,
        context: Context,
        plan: Plan,
        smoke_request: SmokeRequest,
        request: NodesRequest,
        out: Path,
        without_folder: tuple[str, ...],
    ) -> None:
        self._context, self._plan, self._request = context, plan, request
        self._smoke_request = smoke_request
        self._out = out
        self._without_folder = without_folder
        self._rounds: list[Round] = []
        self._started = time.monotonic()
        self._started_at = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")

    def test(
        self,
        nodes: Sequence[Node],
        left_out: Sequence[Node],
        defaults: NodeDefaults,
        job: str | None,
    ) -> NodesResult:
        self._context.progress.say(f"looking for the environment on {_count(nodes)}")
        prepared, failures = groups_smoke.prepare(nodes, defaults, self._environments(defaults))
        isolated: Isolation | None = None
        decision = None
        whole = None
        if prepared:
            run_groups = self._run_groups(prepared, defaults)
            names = tuple(prepared)
            if self._request.pairs:
                isolated = isolation.isolate(names, run_groups)
            else:
                run_groups(isolation.ALL_TOGETHER, [names])
            whole = self._rounds[0].results[names]
        if isolated is not None and self._request.drain:
            decision = self._drain(isolated, left_out)
        return NodesResult(
            name=self._plan.name,
            selection=self._request.selection,
            verdict=_verdict(whole, failures),
            started_at=self._started_at,
            duration_s=round(time.monotonic() - self._started, 3),
            job=job,
            tested=tuple(prepared.values()),
            left_out=tuple(left_out),
            failures=failures,
            whole=whole,
            rounds=tuple(self._rounds),
            isolation=isolated,
            drain=decision,
            without_folder=self._without_folder,
            evidence=self._out,
        )

    def _environments(self, defaults: NodeDefaults) -> list[PurePosixPath]:
        """Where the environment may be on a node: what was shipped, else this machine's own prefix,
        which a shared file system has everywhere."""
        if self._plan.request.prefix is not None:
            return [PurePosixPath(self._plan.request.prefix.absolute())]
        return [defaults.path / self._plan.name, PurePosixPath(self._plan.prefix_path)]

    def _run_groups(
        self, prepared: Mapping[str, PreparedNode], defaults: NodeDefaults
    ) -> isolation.RunGroups:
        request = self._smoke_request
        ranks = groups_smoke.ranks_per_node(prepared.values(), request.ranks, request.backend)
        argv = smoke_runner.arguments(
            self._plan.resolution, dataclasses.replace(request, ranks=None)
        )
        if request.folder:
            argv += ["--folder", str(request.folder.absolute())]

        def run(purpose: str, groups: Sequence[Group]) -> Mapping[Group, GroupVerdict]:
            self._context.progress.say(_describe_round(purpose, groups))
            options = argv + _search_deadline(purpose, request)
            results = groups_smoke.run_groups(
                groups, prepared, ranks, options, request.timeout_s, defaults
            )
            self._rounds.append(Round(purpose=purpose, results=results))
            self._keep(results)
            return {group: result.isolation_verdict for group, result in results.items()}

        return run

    def _keep(self, results: Mapping[Group, GroupResult]) -> None:
        """Write reports and logs of a round into the evidence folder."""
        number = len(self._rounds)
        for index, result in enumerate(results.values(), start=1):
            folder = self._out / f"{number:02}-{index:03}"
            folder.mkdir()
            (folder / "nodes.txt").write_text("\n".join(result.group) + "\n")
            if result.report is not None:
                text = json.dumps(result.report, indent=2) + "\n"
                (folder / smoke_runner.REPORT).write_text(text)
            for logs in result.logs.values():
                for name, text in logs.items():
                    (folder / name).write_text(text)

    def _drain(self, found: Isolation, left_out: Sequence[Node]) -> DrainDecision:
        results = [result for each in self._rounds for result in each.results.values()]
        decision = drain_policy.decide(found, results, left_out, self._request.drain_max)
        drained, refused = {}, {}
        for node, reason in decision.drained.items():
            problem = slurm_nodes.drain(node, reason)
            if problem:
                refused[node] = problem
            else:
                drained[node] = reason
        return dataclasses.replace(
            decision, drained=drained, not_drained={**decision.not_drained, **refused}
        )


def _search_deadline(purpose: str, request: SmokeRequest) -> list[str]:
    """When all nodes have imported torch once, nobody waits long for one that does not come."""
    if purpose in (isolation.ALL_TOGETHER, isolation.ALONE, isolation.ALONE_AGAIN):
        return []
    if any(each.startswith("rendezvous=") or "=" not in each for each in request.deadlines):
        return []
    return ["--deadline", f"rendezvous={SEARCH_RENDEZVOUS_S:g}"]


def _verdict(whole: GroupResult | None, failures: Mapping[str, NodeFailure]) -> Verdict:
    """Nodes that could not be tested are never part of a success."""
    if whole is None:
        return "unknown"
    if failures and model.succeeded(whole.verdict):
        return "unknown"
    return whole.verdict


def _describe_round(purpose: str, groups: Sequence[Group]) -> str:
    if len(groups) == 1:
        return f"testing {purpose}: {clustershell.fold(groups[0])}"
    return f"testing {purpose}: {len(groups)} groups at once"


def _count(nodes: Sequence[object]) -> str:
    return f"{len(nodes)} node" if len(nodes) == 1 else f"{len(nodes)} nodes"
