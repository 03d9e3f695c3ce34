"""`provision jobs`: what the engines say of the jobs that provision launched.

provision keeps no list of its own.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from provision.adapters.kubernetes import jobs as kubernetes_jobs
from provision.adapters.slurm import jobs as slurm_jobs
from provision.cluster import actions
from provision.cluster.actions import Action, ResultT
from provision.cluster.inventory import Node, NodeSelection
from provision.cluster.remote import run_action
from provision.core.errors import InvalidSpec, ToolMissing
from provision_runtime.node.results import HostLog

Engine = Literal["slurm", "kubernetes", "hosts"]
# Of a job's id, which so names its engine.
KUBERNETES_PREFIX = "k8s:"
ASK_TIMEOUT_S = 30.0


def engine_of(selection: NodeSelection) -> Engine:
    """The engine that starts jobs on these nodes. Raises InvalidSpec if there are several."""
    engines = {node.engine for node in selection.nodes}
    if engines == {"slurm"}:
        return "slurm"
    if engines == {"kubernetes"}:
        return "kubernetes"
    if engines <= {"ssh", "local", "exec"}:
        return "hosts"
    raise InvalidSpec(
        f"--on `{selection.text}` has nodes of several engines ({', '.join(sorted(engines))}), and "
        "a job has one.",
        advice="Choose nodes of one engine.",
    )


@dataclass(frozen=True, kw_only=True)
class HostJob:
    """A host's part of a job."""

    id: str
    host: str
    node: int
    state: str
    status: int | None


def list_on_hosts(selection: NodeSelection) -> tuple[list[HostJob], list[str]]:
    """The jobs of every host, and for each host that did not answer, why."""
    results, problems = _ask_hosts(actions.JOB_LIST, {}, selection)
    jobs = [HostJob(host=host, **row) for host, result in results for row in result["jobs"]]
    return jobs, problems


def log_on_hosts(identity: str, selection: NodeSelection) -> tuple[str, list[str]]:
    """The logs of a job's parts, and for each host that did not answer, why."""
    logs, problems = read_host_logs(identity, selection)
    return "\n".join(f"==> {host}\n{log['text']}" for host, log in logs), problems


def read_host_logs(
    identity: str, selection: NodeSelection, starts: Mapping[str, int] | None = None
) -> tuple[list[tuple[str, HostLog]], list[str]]:
    """The hosts of a job's parts with their logs, node 0 first, and for each host that did not
    answer, why. starts: where to begin to read the log of each node. Raises InvalidSpec without any."""
    arguments = {"id": identity, "starts": starts or {}}
    results, problems = _ask_hosts(actions.JOB_LOG, arguments, selection)
    logs = [(host, log) for host, result in results for log in result["logs"]]
    if not logs and not (starts and problems):
        raise _no_job(f"has a job {identity}", selection, problems)
    return sorted(logs, key=lambda pair: pair[1]["node"]), problems


def cancel_on_hosts(
    identity: str, selection: NodeSelection, nodes: Sequence[Node] | None = None
) -> list[str]:
    """End a job's part on every host that has one; for each host that did not answer, why.

    Raises InvalidSpec if none has one.
    """
    results, problems = _ask_hosts(actions.JOB_CANCEL, {"id": identity}, selection, nodes)
    if not any(result["signaled"] for _, result in results):
        raise _no_job(f"runs a job {identity}", selection, problems)
    return problems


def _ask_hosts(
    action: Action[ResultT],
    arguments: Mapping[str, object],
    selection: NodeSelection,
    nodes: Sequence[Node] | None = None,
) -> tuple[list[tuple[str, ResultT]], list[str]]:
    """The result of each host, and for each without one, why."""
    responses = run_action(
        nodes or selection.nodes,
        action,
        arguments,
        stage="jobs",
        timeout_s=ASK_TIMEOUT_S,
        defaults=selection.defaults,
    )
    results, problems = [], []
    for response in responses:
        if response.result is not None:
            results.append((response.node.name, response.result))
        elif response.failure is not None:
            problems.append(f"{response.node.name}: {response.failure.message}")
    return results, problems


def _no_job(verb: str, selection: NodeSelection, problems: Sequence[str]) -> InvalidSpec:
    unasked = f"; no answer from {'; '.join(problems)}" if problems else ""
    return InvalidSpec(f"No node of `{selection.text}` {verb}{unasked}.")


def list_slurm() -> list[slurm_jobs.SlurmJob]:
    """This user's jobs that provision launched."""
    prefix = "provision:"
    return [job for job in slurm_jobs.list_jobs() if job.comment.startswith(prefix)]


def slurm_log(identity: str) -> str:
    """The log of a job, or those of the tasks of an array. Raises InvalidSpec if there is none yet, or
    no shared file system shows it."""
    tasks = slurm_jobs.show_tasks(identity)
    texts = {}
    for fields in tasks:
        path = slurm_jobs.log_path(fields)
        with contextlib.suppress(FileNotFoundError):
            texts[path] = path.read_text(errors="replace")
    if not texts:
        state = tasks[0].get("JobState", "in an unknown state")
        raise InvalidSpec(
            f"Job {identity} is {state}, and there is no {slurm_jobs.log_path(tasks[0])}.",
            advice="The log appears when the job starts, on the nodes' file system.",
        )
    if len(tasks) == 1:
        return "".join(texts.values())
    return "\n".join(f"==> {path.name}\n{texts[path]}" for path in sorted(texts))


def list_kubernetes(
    selection: NodeSelection | None, namespace: str | None
) -> list[kubernetes_jobs.KubernetesJob]:
    """The jobs that provision launched in a namespace."""
    return kubernetes_jobs.list_jobs(kube_context(selection), namespace)


def read_log(
    engine: Engine, job: str, selection: NodeSelection | None, namespace: str | None
) -> tuple[str, list[str]]:
    """What a job printed, and why parts of it are missing. selection: the hosts, for plain hosts."""
    if engine == "slurm":
        return slurm_log(job), []
    if engine == "kubernetes":
        name = job.removeprefix(KUBERNETES_PREFIX)
        return kubernetes_jobs.job_log(name, kube_context(selection), namespace), []
    assert selection is not None
    return log_on_hosts(job, selection)


def cancel(
    engine: Engine, job: str, selection: NodeSelection | None, namespace: str | None
) -> list[str]:
    """End a job; returns where it may go on, and why. Raises InvalidSpec if its engine does not know
    it."""
    if engine == "slurm":
        slurm_jobs.show_job(job)  # scancel says nothing about jobs that do not exist
        slurm_jobs.cancel(job)
    elif engine == "kubernetes":
        name = job.removeprefix(KUBERNETES_PREFIX)
        kubernetes_jobs.cancel(name, kube_context(selection), namespace)
    else:
        assert selection is not None
        return cancel_on_hosts(job, selection)
    return []


def kube_context(selection: NodeSelection | None) -> str:
    return selection.nodes[0].context if selection else ""


def has_command(name: str) -> bool:
    return shutil.which(name) is not None


def require_engine() -> None:
    """ToolMissing if this machine has neither Slurm's commands nor kubectl."""
    if not has_command("squeue") and not has_command("kubectl"):
        raise ToolMissing(
            "There is neither `squeue` nor `kubectl` on this machine.",
            advice="For jobs on plain hosts name them with --on.",
        )
