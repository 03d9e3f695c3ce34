"""The ranks of a launched job on all its nodes, and the faults of the nodes that keep it waiting."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import replace

from provision import launch
from provision.adapters import clustershell
from provision.adapters.kubernetes import jobs as kubernetes_jobs
from provision.adapters.kubernetes.command import Kubectl
from provision.adapters.slurm import jobs as slurm_jobs
from provision.cluster import actions
from provision.cluster.inventory import Engine, Node, NodeDefaults, NodeSelection
from provision.cluster.remote import run_action
from provision.core.container import PYTHON
from provision.core.errors import InvalidSpec, ProvisionError
from provision.verbs.why.why import NodeNote, WhyResult, keep_stacks
from provision.workflow.context import Context
from provision_runtime.hang import model
from provision_runtime.hang.diagnosis import diagnose

COLLECT_S, EXAMINE_S = 20.0, 20.0


def is_job(subject: str, selection: NodeSelection | None) -> bool:
    """Whether a subject is a launched job: a number is one where Slurm runs a job of this user by it.
    selection: of --on."""
    if selection is not None or subject.startswith(kubernetes_jobs.PREFIX):
        return True
    if not launch.is_job(subject) or shutil.which("scontrol") is None:
        return False
    try:
        fields = slurm_jobs.show_tasks(subject)[0]
    except ProvisionError:  # no job, or Slurm does not respond
        return False
    return f"({os.getuid()})" in fields.get("UserId", "") and fields.get("JobState") == "RUNNING"


def examine_job(
    context: Context, job: str, selection: NodeSelection | None, namespace: str | None
) -> WhyResult:
    """Read the ranks of a launched job on all its nodes, judge them, and examine the nodes whose ranks
    the others wait for.

    Args:
        job: as `launch` printed it.
        selection: of --on. Needed for plain hosts; else its settings hold.

    Raises:
        InvalidSpec: the job is unknown or does not run.
    """
    nodes = nodes_of_job(job, selection, namespace)
    with context.progress.meter("looking at ranks", 0):
        snapshots, notes = read_ranks(job, nodes)
        jobs = diagnose(snapshots)
        groups = [group for job in jobs for group in job.groups if group.is_culprit]
        hosts = {host for group in groups for host in group.hosts}
        culprits = [node for node in nodes.nodes if node.name in hosts]
        notes += examine_nodes(culprits, nodes.defaults)
    return WhyResult(jobs=tuple(jobs), stacks=keep_stacks(context, snapshots), nodes=tuple(notes))


def nodes_of_job(job: str, selection: NodeSelection | None, namespace: str | None) -> NodeSelection:
    """The nodes of a job and how to reach them. Raises InvalidSpec if it is unknown or does not run."""
    defaults = selection.defaults if selection else NodeDefaults()
    if job.startswith(kubernetes_jobs.PREFIX):
        context = selection.nodes[0].context if selection else ""
        kubectl = Kubectl(context=context, namespace=namespace or "")
        pods = kubernetes_jobs.pods_of_job(kubectl, job.removeprefix(kubernetes_jobs.PREFIX))
        # %h becomes the pod's name.
        python = f"{shlex.join(kubectl.command)} exec -i %h -- {PYTHON}"
        return _selection(
            job, "exec", [pod["metadata"]["name"] for pod in pods], replace(defaults, python=python)
        )
    if launch.is_job(job) and (selection is None or selection.nodes[0].engine == "slurm"):
        fields = slurm_jobs.show_tasks(job)[0]
        if fields.get("JobState") != "RUNNING":
            raise InvalidSpec(
                f"Job {job} is {fields.get('JobState', 'in an unknown state')}: no rank runs.",
                advice=f"The end of its log says which rank failed first: provision jobs log {job}",
            )
        allocated = fields["NodeList"]
        # A step beside those of the job, whether this runs in the job or not.
        return _selection(
            job,
            "slurm",
            clustershell.expand(allocated),
            replace(
                defaults,
                via="srun",
                allocated=allocated,
                srun_options=(f"--jobid={job}", *defaults.srun_options),
            ),
        )
    if selection is None or not job:
        raise InvalidSpec(
            f"`{job}` is not a job.",
            advice="Write what `provision launch` printed: its JOB and --on.",
        )
    return selection


def _selection(
    job: str, engine: Engine, names: Sequence[str], defaults: NodeDefaults
) -> NodeSelection:
    return NodeSelection(
        text=f"job {job}",
        nodes=tuple(Node(name=name, engine=engine, address=name) for name in names),
        defaults=defaults,
    )


def read_ranks(job: str, nodes: NodeSelection) -> tuple[list[model.Snapshot], list[NodeNote]]:
    """What the ranks of each node do, and why that is unknown of others."""
    snapshots, notes = [], []
    for reply in run_action(
        nodes.nodes,
        actions.JOB_RANKS,
        {"id": job.removeprefix(kubernetes_jobs.PREFIX)},
        stage="ranks",
        timeout_s=COLLECT_S,
        defaults=nodes.defaults,
    ):
        name = reply.node.name
        problem = reply.failure.message if reply.failure else f"no rank of job {job} runs there"
        for document in reply.result["snapshots"] if reply.result else ():
            try:
                part = model.from_json(document)
            except ValueError as error:
                problem = f"its reply is damaged: {error}"
                break
            # By the name that the user knows, not by its own.
            snapshots.append(
                replace(part, host=name, ranks=[replace(rank, host=name) for rank in part.ranks])
            )
            problem = ""
        if problem:
            notes.append(NodeNote(node=name, message=problem, is_unknown=True))
    return snapshots, notes


def examine_nodes(nodes: Sequence[Node], defaults: NodeDefaults) -> list[NodeNote]:
    """What `doctor` finds on nodes, without its slow probes."""
    notes = []
    arguments = {"prefix": None, "only": (), "rules": defaults.rules}
    for reply in run_action(
        nodes, actions.DOCTOR, arguments, stage="check", timeout_s=EXAMINE_S, defaults=defaults
    ):
        findings = reply.result["findings"] if reply.result else ()
        messages = [f"{finding['id']}: {finding['message']}" for finding in findings]
        reason = (
            f"did not examine it: {reply.failure.message}" if reply.failure else "finds no fault"
        )
        messages = messages or [f"doctor {reason}"]
        notes += [NodeNote(node=reply.node.name, message=message) for message in messages]
    return notes
