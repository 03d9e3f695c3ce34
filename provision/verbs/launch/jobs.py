"""`provision jobs`: what the engines say of the jobs that provision launched.

provision keeps no list of its own.
"""

from __future__ import annotations

import codecs
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from provision.adapters.kubernetes import jobs as kubernetes_jobs
from provision.adapters.kubernetes.command import Kubectl
from provision.adapters.slurm import jobs as slurm_jobs
from provision.adapters.slurm.allocations import ENDED
from provision.cluster import actions
from provision.cluster.actions import Action, ResultT
from provision.cluster.inventory import Node, NodeSelection
from provision.cluster.remote import run_action
from provision.core.errors import InvalidSpec, ToolMissing
from provision.core.types import ListedJob, Progress

Engine = Literal["slurm", "kubernetes", "hosts"]
# Of a job's id, which so names its engine.
KUBERNETES = kubernetes_jobs.PREFIX
ASK_TIMEOUT_S = 30.0
# How often an engine is asked, and logs are read.
ASK_S = 2.0
Show = Callable[[str], None]


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


def list_jobs(
    selection: NodeSelection | None, namespace: str | None
) -> tuple[list[ListedJob], list[str]]:
    """The jobs of the engine of these nodes, else of Slurm or Kubernetes here; and for each host that
    did not answer, why. Raises ToolMissing without an engine."""
    engine = engine_of(selection) if selection else None
    if selection and engine == "hosts":
        results, problems = _ask_hosts(actions.JOB_LIST, {}, selection)
        parts = [(host, part) for host, result in results for part in result["jobs"]]
        parts.sort(key=lambda pair: (pair[1]["id"], pair[1]["node"]))
        jobs = [
            ListedJob(
                id=part["id"],
                name=f"node {part['node']}",
                state=part["state"],
                nodes=1,
                where=host,
                advice=f"status {part['status']} on {host}" if part["state"] == "failed" else "",
            )
            for host, part in parts
        ]
        return jobs, problems
    if engine == "slurm" or (engine is None and shutil.which("squeue")):
        return slurm_jobs.list_jobs(), []
    if engine is None and shutil.which("kubectl") is None:
        raise ToolMissing(
            "There is neither `squeue` nor `kubectl` on this machine.",
            advice="For jobs on plain hosts name them with --on.",
        )
    return kubernetes_jobs.list_jobs(kubectl_of(selection, namespace)), []


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


def show_log(
    engine: Engine,
    job: str,
    selection: NodeSelection | None,
    namespace: str | None,
    show: Show,
    progress: Progress,
    *,
    follow: bool,
) -> bool:
    """Show what a job has printed. follow: and what it prints until it ends.

    selection: the hosts, for plain hosts. Returns whether all of the log was shown; if it was
    followed, whether the job succeeded.
    """
    if engine == "kubernetes":
        name, kubectl = job.removeprefix(KUBERNETES), kubectl_of(selection, namespace)
        if not follow:
            show(kubernetes_jobs.job_log(kubectl, name))
            return True
        state = kubernetes_jobs.follow_log(kubectl, name, show, progress)
    elif engine == "slurm":
        state = _show_slurm(job, show, progress, follow)
    else:
        assert selection is not None
        state = _show_hosts(job, selection, show, progress, follow)
    if not follow:
        return bool(state)
    progress.info(f"job {job}: {state}")
    return state in ("COMPLETED", "Complete", "done")


def _show_slurm(job: str, show: Show, progress: Progress, follow: bool) -> str:
    """A job, or all tasks of an array; returns their states. Raises InvalidSpec if there is no log."""
    logs: dict[Path, _Log] = {}
    # Slurm forgets tasks that ended while others still run.
    states: dict[str, str] = {}
    state, shown_last = "", Path()
    while True:
        tasks = slurm_jobs.show_tasks(job)
        for fields in tasks:
            states[fields.get("JobId", job)] = fields.get("JobState", "UNKNOWN")
        # A job that ended before this question has written all that it will.
        has_ended = all(name.startswith(ENDED) for name in states.values())
        previous, state = state, ", ".join(sorted(set(states.values())))
        if follow and state != previous and not has_ended:
            reason = tasks[0].get("Reason", "None")
            progress.info(f"job {job}: {state}" + (f" ({reason})" if reason != "None" else ""))
        for path in sorted(map(slurm_jobs.log_path, tasks)):
            text = logs.setdefault(path, _Log()).read(path)
            if text:
                header = f"==> {path.name}\n" if path != shown_last and len(states) > 1 else ""
                shown_last = path
                show(header + text)
        if not (follow or any(log.exists for log in logs.values())):
            raise InvalidSpec(
                f"Job {job} is {state}, and there is no {min(logs)}.",
                advice="The log appears when the job starts, on the nodes' file system.",
            )
        if has_ended or not follow:
            return state
        time.sleep(ASK_S)


class _Log:
    """A file that grows; empty while there is none: it begins with the job."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._position = 0
        self.exists = False

    def read(self, path: Path) -> str:
        try:
            with path.open("rb") as file:
                file.seek(self._position)
                data = file.read()
        except FileNotFoundError:
            return ""
        self.exists = True
        self._position += len(data)
        return self._decoder.decode(data)


def _show_hosts(
    job: str, selection: NodeSelection, show: Show, progress: Progress, follow: bool
) -> str:
    """Returns the states of the job's parts; empty if a host did not answer. Raises InvalidSpec if
    none has a part."""
    ends: dict[str, int] = {}
    unreachable: list[str] = []
    shown_last = ""
    while True:
        results, problems = _ask_hosts(actions.JOB_LOG, {"id": job, "starts": ends}, selection)
        logs = [(host, log) for host, result in results for log in result["logs"]]
        if not logs and not (ends and problems):
            raise _no_job(f"has a job {job}", selection, problems)
        if problems != unreachable:
            unreachable = problems
            for problem in problems:
                progress.warn(problem)
        for host, log in sorted(logs, key=lambda pair: pair[1]["node"]):
            if log["text"]:
                header = f"==> {host}\n" if host != shown_last and len(logs) > 1 else ""
                shown_last = host
                show(header + log["text"])
            ends[str(log["node"])] = log["end"]
        states = {log["state"] for _, log in logs}
        if not follow or ("running" not in states and not problems):
            names = ", ".join(sorted(states - {"done"} or states))
            return "" if problems else names
        time.sleep(ASK_S)


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


def cancel(
    engine: Engine, job: str, selection: NodeSelection | None, namespace: str | None
) -> list[str]:
    """End a job; returns where it may go on, and why. Raises InvalidSpec if its engine does not know
    it."""
    if engine == "slurm":
        slurm_jobs.show_tasks(job)  # scancel says nothing about jobs that do not exist
        slurm_jobs.cancel(job)
    elif engine == "kubernetes":
        kubectl = kubectl_of(selection, namespace)
        kubernetes_jobs.cancel(kubectl, job.removeprefix(KUBERNETES))
    else:
        assert selection is not None
        return cancel_on_hosts(job, selection)
    return []


def kubectl_of(selection: NodeSelection | None, namespace: str | None) -> Kubectl:
    context = selection.nodes[0].context if selection else ""
    return Kubectl(context=context, namespace=namespace or "")
