"""`provision smoke --on`: the smoke test over nodes, and the search for the one that makes it fail."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath

from provision.adapters import clustershell
from provision.adapters.slurm import allocations
from provision.adapters.slurm import nodes as slurm_nodes
from provision.cluster import actions
from provision.cluster.inventory import Node, NodeDefaults, Nodes, NodeSelection
from provision.cluster.service import is_out_of_service
from provision.core.atomic import atomic_write
from provision.core.dataclass import frozen
from provision.core.errors import CheckFailed, InvalidSpec
from provision.core.types import Verdict
from provision.workflow.context import Context
from provision.workflow.passport import record_smoke_over_nodes
from provision.workflow.plan import BuildRequest, Plan, make_plan
from provision.workflow.smoke import isolation
from provision.workflow.smoke import node_groups as groups_smoke
from provision.workflow.smoke import nodes_report as smoke_nodes_report
from provision.workflow.smoke import request as smoke_requests
from provision.workflow.smoke import runner as smoke_runner
from provision.workflow.smoke.isolation import Group, GroupVerdict
from provision.workflow.smoke.node_groups import PreparedNode
from provision.workflow.smoke.nodes_report import NodesResult, Round
from provision.workflow.smoke.request import SmokeRequest
from provision_runtime.report import model
from provision_runtime.report.text import format_count

FOLDER = "nodes"
REPORT = "nodes.json"
# The allocation must last for the rounds of a search. Most need four; it is given back at its end.
ROUNDS = 6
# For a search's later tests.
SEARCH_DEADLINE = "rendezvous=60"
# Phases that write files which all ranks must see.
PHASES_WITH_SHARED_FOLDER = ("filesystem", "checkpoint")


@frozen
class NodesRequest:
    """Which nodes to test, and what to do if they fail.

    count: as many of the selection, None for all. pairs: search for the bad node or link.
    """

    selection: NodeSelection
    count: int | None = None
    pairs: bool = False


def smoke_nodes(context: Context, request: BuildRequest, nodes: NodesRequest) -> NodesResult:
    plan = make_plan(context, request)
    test = plan.smoke_request
    without_folder = _phases_without_folder(test)
    test = replace(test, skip=(*test.skip, *without_folder))
    if any(node.engine == "kubernetes" for node in nodes.selection.nodes):
        raise InvalidSpec(
            "Kubernetes nodes run only pods, so the smoke test is a job there.",
            advice="Start it with `provision launch`: docs/smoke-nodes.md has the command.",
        )
    smoke_requests.check(test)
    usable, left_out = _usable_nodes(nodes)
    out = (test.out or context.folders.smoke(plan.name)).absolute() / FOLDER
    shutil.rmtree(out, ignore_errors=True)  # of an earlier test
    out.mkdir(parents=True)
    started, started_at = time.monotonic(), datetime.now(timezone.utc)
    isolated, whole = None, None
    with _reach(nodes, usable, plan.name, test) as (defaults, job):
        context.progress.info(f"looking for the environment on {format_count(len(usable), 'node')}")
        prepared, failures = {}, {}
        # Where the environment may be on a node: what was shipped, else this machine's own
        # prefix, which a shared file system has everywhere.
        if plan.request.prefix is not None:
            folders = [PurePosixPath(plan.request.prefix.absolute())]
        else:
            folders = [defaults.path / plan.name, PurePosixPath(plan.prefix_path)]
        for reply in groups_smoke.prepare(usable, defaults, folders, actions.SMOKE_PREPARE):
            name = reply.node.name
            if reply.failure is not None:
                failures[name] = reply.failure
            elif reply.result is not None:
                prepared[name] = PreparedNode(node=reply.node, **reply.result)
        run = _NodesRun(context, plan, test, out, prepared, defaults)
        names = tuple(prepared)
        if names and nodes.pairs:
            isolated = isolation.isolate(names, run.test_groups)
        elif names:
            run.test_groups(isolation.ALL_TOGETHER, [names])
        if names:
            whole = run.rounds[0].results[names]
    verdict: Verdict = whole.verdict if whole else "unknown"
    if failures and model.succeeded(verdict):
        # Nodes that could not be tested are never part of a success.
        verdict = "unknown"
    result = NodesResult(
        name=plan.name,
        selection=nodes.selection,
        verdict=verdict,
        started_at=started_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        duration_s=round(time.monotonic() - started, 3),
        job=job,
        tested=tuple(prepared.values()),
        left_out=tuple(left_out),
        failures=failures,
        whole=whole,
        rounds=tuple(run.rounds),
        isolation=isolated,
        without_folder=without_folder,
        evidence=out,
    )
    document = smoke_nodes_report.document(result)
    atomic_write(out / REPORT, json.dumps(document, indent=2) + "\n")
    if plan.smoke_request.is_whole:
        facts = whole.report.facts if whole and whole.report else {}
        record_smoke_over_nodes(context, plan, document, facts.get("lock_hash"))
    return result


def _phases_without_folder(request: SmokeRequest) -> tuple[str, ...]:
    """The phases to skip because no folder is named that all nodes share."""
    if request.folder is not None:
        return ()
    phases = tuple(phase for phase in PHASES_WITH_SHARED_FOLDER if phase not in request.skip)
    for phase in set(phases).intersection(request.only):
        raise InvalidSpec(
            f"The setting only={phase} on several nodes needs a folder that all of them share.",
            advice="Name it with --set folder=DIR.",
        )
    return () if request.only else phases


def _usable_nodes(request: NodesRequest) -> tuple[list[Node], list[Node]]:
    """The nodes to test, and those that their engine has out of service. Of more nodes than
    requested, those that wait for work come first."""
    left_out = [node for node in request.selection.nodes if is_out_of_service(node)]
    usable = [node for node in request.selection.nodes if node not in left_out]
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


@contextmanager
def _reach(
    request: NodesRequest, nodes: Nodes, name: str, smoke_request: SmokeRequest
) -> Iterator[tuple[NodeDefaults, str | None]]:
    """How commands reach the nodes: ssh; for nodes of Slurm a job that holds them meanwhile, unless
    this runs in one. Its number, if it was made here."""
    defaults = request.selection.defaults
    if not any(node.engine == "slurm" for node in nodes):
        yield defaults, None
    elif slurm_nodes.allocation() is not None:
        yield replace(defaults, via="srun"), None
    else:
        rounds = ROUNDS if request.pairs else 1
        test_s = smoke_request.timeout_s + 2 * groups_smoke.STARTING_S
        partitions = sorted({node.partition for node in nodes if node.engine == "slurm"})
        outside = [node.name for node in nodes if node.engine != "slurm"]
        if len(partitions) > 1 or outside:
            names = [f"partition {name}" for name in partitions] + outside[:3]
            raise InvalidSpec(
                f"One job of Slurm cannot have nodes of {', '.join(names)}.",
                advice="Select the nodes of one partition.",
            )
        names = [node.name for node in nodes]
        with allocations.allocate(
            names,
            partition=partitions[0],
            gpus=min(node.gpus or 0 for node in nodes),
            name=f"provision-smoke-{name}",
            time_s=rounds * test_s + groups_smoke.PREPARE_S,
            queue_s=defaults.queue_s,
        ) as (job, options):
            allocated = ",".join(names)
            yield replace(defaults, via="srun", allocated=allocated, srun_options=options), job


@dataclass
class _NodesRun:
    """The rounds of one test, and the files that they leave."""

    context: Context
    plan: Plan
    test: SmokeRequest
    out: Path
    prepared: Mapping[str, PreparedNode]
    defaults: NodeDefaults
    rounds: list[Round] = field(default_factory=list)

    def test_groups(self, purpose: str, groups: Sequence[Group]) -> Mapping[Group, GroupVerdict]:
        text = clustershell.fold(groups[0]) if len(groups) == 1 else f"{len(groups)} groups at once"
        self.context.progress.info(f"testing {purpose}: {text}")
        test = self.test
        argv = smoke_requests.arguments(self.plan.resolution, replace(test, ranks=None))
        if purpose not in isolation.FIRST_TESTS:
            # When all nodes have imported torch once, none waits long for one that does not come;
            # of two deadlines of a phase, the user's is the later.
            argv = ["--deadline", SEARCH_DEADLINE, *argv]
        ranks = groups_smoke.ranks_per_node(self.prepared.values(), test.ranks, test.backend)
        results = groups_smoke.run_groups(
            groups, self.prepared, ranks, argv, test.timeout_s, self.defaults
        )
        self.rounds.append(Round(purpose=purpose, results=results))
        for index, result in enumerate(results.values(), start=1):
            folder = self.out / f"{len(self.rounds):02}-{index:03}"
            folder.mkdir()
            (folder / "nodes.txt").write_text("\n".join(result.group) + "\n")
            if result.report is not None:
                (folder / smoke_runner.REPORT).write_text(model.dumps(result.report))
            for name, text in result.logs.items():
                (folder / name).write_text(text)
        return {group: result.isolation_verdict for group, result in results.items()}
