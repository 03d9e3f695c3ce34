"""The ranks of a launched job on all its nodes, and the faults of the nodes that keep it waiting."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from provision.adapters import clustershell
from provision.adapters.kubernetes import jobs as kubernetes_jobs
from provision.adapters.slurm import jobs as slurm_jobs
from provision.cluster import actions
from provision.cluster.inventory import Node, NodeDefaults, NodeSelection
from provision.cluster.remote import merge_same_nodes, run_action
from provision.core.container import PYTHON
from provision.core.errors import InvalidSpec
from provision_runtime.hang import diagnosis as hangs
from provision_runtime.hang import model
from provision_runtime.report.diagnosis import Diagnosis

KUBERNETES_PREFIX = "k8s:"
COLLECT_S, EXAMINE_S = 20.0, 20.0


@dataclass(frozen=True, kw_only=True)
class JobRanks:
    """By node. snapshots: of the ranks; failures: why there is none."""

    snapshots: Mapping[str, model.Snapshot]
    failures: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Examination:
    """`doctor` on nodes. failures: why a node was not examined."""

    diagnoses: Mapping[str, Diagnosis]
    failures: Mapping[str, str]


def nodes_of_job(
    job: str, selection: NodeSelection | None, namespace: str | None
) -> tuple[NodeSelection, dict[str, str]]:
    """The nodes of a job and how to reach them; and why some of them cannot be asked.

    Args:
        job: as `launch` printed it.
        selection: of --on. Needed for plain hosts; else its settings hold.

    Raises:
        InvalidSpec: the job is unknown or does not run.
    """
    defaults = selection.defaults if selection else NodeDefaults()
    if job.startswith(KUBERNETES_PREFIX):
        context = selection.nodes[0].context if selection else ""
        return _pods(job.removeprefix(KUBERNETES_PREFIX), context, namespace, defaults)
    is_slurm = selection is None or all(node.engine == "slurm" for node in selection.nodes)
    if is_slurm and job.isdigit():
        fields = slurm_jobs.show_job(job)
        if fields.get("JobState") != "RUNNING":
            raise InvalidSpec(
                f"Job {job} is {fields.get('JobState', 'in an unknown state')}: no rank runs.",
                advice=f"The end of its log says which rank failed first: provision jobs log {job}",
            )
        allocated = fields["NodeList"]
        names = clustershell.expand(allocated)
        nodes = tuple(Node(name=name, engine="slurm", address=name) for name in names)
        # A step beside those of the job, whether this runs in the job or not.
        options = (f"--jobid={job}", *defaults.srun_options)
        defaults = dataclasses.replace(
            defaults, via="srun", allocated=allocated, srun_options=options
        )
        return NodeSelection(text=f"job {job}", nodes=nodes, defaults=defaults), {}
    if selection is None:
        raise InvalidSpec(
            f"`{job}` is neither a number of Slurm nor k8s:NAME.",
            advice="For a job on plain hosts name them with --on. For ranks of this machine write "
            "no job.",
        )
    return selection, {}


def _pods(
    job: str, context: str, namespace: str | None, defaults: NodeDefaults
) -> tuple[NodeSelection, dict[str, str]]:
    waiting = kubernetes_jobs.pods_of_job(job, context, namespace)
    names = [name for name, reason in waiting.items() if not reason]
    words = ["kubectl", "exec", "-i", *(["--context", context] if context else [])]
    words += ["--namespace", namespace] if namespace else []
    # ClusterShell puts the pod's name in place of %h.
    defaults = dataclasses.replace(defaults, python=f"{shlex.join(words)} %h -- {PYTHON}")
    nodes = tuple(Node(name=name, engine="exec", address=name) for name in names)
    reasons = {
        name: f"its pod has not started: {reason}" for name, reason in waiting.items() if reason
    }
    return NodeSelection(text=f"job {job}", nodes=nodes, defaults=defaults), reasons


def read_ranks(job: str, selection: NodeSelection) -> JobRanks:
    """What the ranks do on every node."""
    snapshots: dict[str, model.Snapshot] = {}
    failures = {}
    responses = run_action(
        selection.nodes,
        actions.JOB_RANKS,
        {"id": job.removeprefix(KUBERNETES_PREFIX)},
        stage="ranks",
        timeout_s=COLLECT_S,
        defaults=selection.defaults,
    )
    for reply in merge_same_nodes(responses):
        name = reply.node.name
        if reply.failure is not None:
            failures[name] = reply.failure.message
        elif reply.result is not None:
            try:
                parts = [model.from_json(document) for document in reply.result["snapshots"]]
            except ValueError as error:
                failures[name] = f"its reply is damaged: {error}"
                continue
            if not parts:
                failures[name] = f"no part of job {job} runs there"
            for part in parts:
                earlier = snapshots[name].ranks if name in snapshots else []
                ranks = [dataclasses.replace(rank, host=name) for rank in part.ranks]
                snapshots[name] = dataclasses.replace(part, host=name, ranks=[*earlier, *ranks])
    return JobRanks(snapshots=snapshots, failures=failures)


def culprit_nodes(ranks: JobRanks, diagnoses: Sequence[hangs.Diagnosis]) -> list[str]:
    """The nodes of the ranks for which the others wait; of all ranks where nobody stands out."""
    groups = [group for job in diagnoses for group in job.groups]
    hosts = {host for group in groups if group.is_culprit for host in group.hosts}
    return [name for name in ranks.snapshots if name in hosts]


def examine_nodes(names: Sequence[str], selection: NodeSelection) -> Examination:
    """Look for known faults of these nodes, quickly."""
    responses = run_action(
        [node for node in selection.nodes if node.name in names],
        actions.DOCTOR,
        {"prefix": None, "only": [], "is_deep": False, "rules": selection.defaults.rules},
        stage="check",
        timeout_s=EXAMINE_S,
        defaults=selection.defaults,
    )
    diagnoses, failures = {}, {}
    for reply in responses:
        if reply.failure is not None:
            failures[reply.node.name] = reply.failure.message
        elif reply.result is not None:
            diagnoses[reply.node.name] = cast(Diagnosis, reply.result)
    return Examination(diagnoses=diagnoses, failures=failures)


def node_lines(ranks: JobRanks, examination: Examination) -> list[str]:
    """What is wrong with nodes, for the page."""
    lines = [
        f"node     {name} is unknown, and so are its ranks: {reason}"
        for name, reason in sorted(ranks.failures.items())
    ]
    for name, result in sorted(examination.diagnoses.items()):
        faults = [finding for finding in result["findings"] if finding["verdict"] != "pass"]
        for finding in faults:
            lines.append(f"node     {name}: {finding['id']}: {finding['message']}")
        if not faults:
            lines.append(f"node     {name}: doctor finds no fault of this node")
    lines += [
        f"node     {name} was not examined: {reason}"
        for name, reason in sorted(examination.failures.items())
    ]
    return lines
