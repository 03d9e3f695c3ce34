"""The ranks of a launched job on all its nodes, and the faults of the nodes that keep it waiting."""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from provision.adapters import clustershell
from provision.adapters.kubernetes import jobs as kubernetes_jobs
from provision.adapters.slurm import jobs as slurm_jobs
from provision.cluster import actions
from provision.cluster.inventory import Node, NodeDefaults, NodeSelection
from provision.cluster.remote import merge_same_nodes, run_action
from provision.core.container import PYTHON
from provision.core.errors import CheckFailed, InvalidSpec, ProvisionError
from provision.verbs.why.why import NodeNote, WhyResult, keep_stacks
from provision.workflow.context import Context
from provision_runtime.hang import model
from provision_runtime.hang.diagnosis import diagnose

KUBERNETES_PREFIX = "k8s:"
COLLECT_S, EXAMINE_S = 20.0, 20.0


def is_job(subject: str, selection: NodeSelection | None) -> bool:
    """Whether a subject is a launched job. selection: of --on.

    Raises InvalidSpec for a number that is both a job of Slurm and a process of this user here, and
    for --on without a job.
    """
    if selection is not None and not subject:
        raise InvalidSpec("--on needs a job.", advice="Write what `provision launch` printed.")
    if selection is not None or subject.startswith(KUBERNETES_PREFIX):
        return True
    if not subject.isdigit() or shutil.which("scontrol") is None:
        return False
    process = Path("/proc") / subject
    if not process.exists() or process.stat().st_uid != os.getuid():
        return True
    try:
        slurm_jobs.show_job(subject)
    except ProvisionError:
        return False
    raise InvalidSpec(
        f"{subject} is a job of Slurm, and a process of yours on this machine.",
        advice=f"For the job write `provision why {subject} --on slurm:PARTITION`; for the process "
        "name its folder.",
    )


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
        CheckFailed: no node has ranks of it.
    """
    nodes, unknown = nodes_of_job(job, selection, namespace)
    with context.progress.meter("looking at ranks", len(nodes.nodes)) as meter:
        snapshots, failures = read_ranks(job, nodes, lambda: meter.advance(1))
    unknown.update(failures)
    notes = [
        NodeNote(node=name, message=unknown[name], is_unknown=True) for name in sorted(unknown)
    ]
    if not any(snapshot.ranks for snapshot in snapshots.values()):
        reasons = "; ".join(f"{note.node}: {note.message}" for note in notes)
        raise CheckFailed(
            f"No rank of job {job} was found: {reasons}.",
            advice="`provision jobs list` shows its state, `provision jobs log` its log.",
        )
    diagnoses = diagnose(list(snapshots.values()))
    culprits = {
        host
        for diagnosis in diagnoses
        for group in diagnosis.groups
        if group.is_culprit
        for host in group.hosts
    }
    notes += examine_nodes([node for node in nodes.nodes if node.name in culprits], nodes.defaults)
    stacks = keep_stacks(context, list(snapshots.values()))
    return WhyResult(jobs=tuple(diagnoses), stacks=stacks, nodes=tuple(notes))


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


def read_ranks(
    job: str, selection: NodeSelection, on_reply: Callable[[], None]
) -> tuple[dict[str, model.Snapshot], dict[str, str]]:
    """By node what its ranks do, or why that is unknown."""
    snapshots: dict[str, model.Snapshot] = {}
    failures = {}
    responses = run_action(
        selection.nodes,
        actions.JOB_RANKS,
        {"id": job.removeprefix(KUBERNETES_PREFIX)},
        stage="ranks",
        timeout_s=COLLECT_S,
        defaults=selection.defaults,
        on_reply=lambda _: on_reply(),
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
    return snapshots, failures


def examine_nodes(nodes: Sequence[Node], defaults: NodeDefaults) -> list[NodeNote]:
    """What `doctor` finds on nodes, without its slow probes."""
    notes = []
    responses = run_action(
        nodes,
        actions.DOCTOR,
        {"prefix": None, "only": [], "is_deep": False, "rules": defaults.rules},
        stage="check",
        timeout_s=EXAMINE_S,
        defaults=defaults,
    )
    for reply in responses:
        name = reply.node.name
        if reply.result is None:
            reason = reply.failure.message if reply.failure else "no reply"
            notes.append(NodeNote(node=name, message=f"doctor did not examine it: {reason}"))
            continue
        findings = reply.result["findings"]
        for finding in findings:
            notes.append(NodeNote(node=name, finding=finding["id"], message=finding["message"]))
        if not findings:
            notes.append(NodeNote(node=name, message="doctor finds no fault of this node"))
    return notes
