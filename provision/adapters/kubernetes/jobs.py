"""Jobs and JobSets of Kubernetes, through the user's kubectl."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision.adapters.kubernetes.command import ask_kubectl, run_kubectl, stream_kubectl
from provision.core.errors import InvalidSpec
from provision.core.types import Progress

MANAGED_LABEL = "app.kubernetes.io/managed-by=provision"
NAME_LABEL = "app.kubernetes.io/name"
INDEX = "batch.kubernetes.io/job-completion-index"
# Indexed Jobs are stable since 1.24; older servers drop the field, and every pod would be node 0.
INDEXED_SINCE = (1, 24)
FOLLOW_S = 2.0
# Conditions that end a job, as we name its state; the second is a JobSet's.
ENDED = {"Complete": "Complete", "Completed": "Complete", "Failed": "Failed"}


@dataclass(frozen=True, kw_only=True)
class KubernetesJob:
    """state: Pending, Running, Complete, Failed, Suspended, with the reason of the last condition."""

    name: str
    namespace: str
    kind: str
    state: str
    nodes: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class JobKey:
    """The key of a job's nodes, and the name of the Secret that holds it."""

    secret: str
    key: str


def submit(
    manifest: Path,
    name: str,
    key: JobKey | None,
    context: str = "",
    namespace: str | None = None,
) -> None:
    """Create the objects of a manifest, after the API server itself has checked all of them; then
    the Secret with the job's key, for which its pods wait, and which goes when the job goes.

    Raises InvalidSpec if it refuses one, or is too old for Indexed Jobs.
    """
    require_indexed_jobs(context)
    create = ["create", "-f", str(manifest)]
    create_secret = ["create", "-f", "-"]
    run_kubectl([*create, "--dry-run=server"], context, namespace)
    if key is not None:
        document = _secret(key, [])
        run_kubectl([*create_secret, "--dry-run=server"], context, namespace, stdin=document)
    run_kubectl(create, context, namespace)
    if key is None:
        return
    try:
        created = ask_kubectl(
            "created", ["get", "-f", str(manifest), "-o", "json"], context, namespace
        )
        owners = []
        for item in created.get("items", [created]):
            if item["kind"] in ("Job", "JobSet"):
                metadata = item["metadata"]
                owner = {"name": metadata["name"], "uid": metadata["uid"]}
                owners.append({"apiVersion": item["apiVersion"], "kind": item["kind"], **owner})
        run_kubectl(create_secret, context, namespace, stdin=_secret(key, owners))
    except BaseException:
        cancel(name, context, namespace)  # it would wait for its key for ever
        raise


def _secret(key: JobKey, owners: list[dict[str, str]]) -> str:
    metadata = {"name": key.secret, "ownerReferences": owners}
    document = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "immutable": True}
    return json.dumps({**document, "stringData": {"key": key.key}})


def require_indexed_jobs(context: str = "") -> None:
    version = ask_kubectl("version", ["version", "-o", "json"], context)["serverVersion"]
    major, minor = (int(re.sub(r"\D", "", version[key]) or 0) for key in ("major", "minor"))
    if (major, minor) < INDEXED_SINCE:
        raise InvalidSpec(
            f"Kubernetes {version['gitVersion']} has no stable Indexed Jobs: every pod would be "
            "node 0.",
            advice="They are stable since 1.24.",
        )


def list_jobs(context: str = "", namespace: str | None = None) -> list[KubernetesJob]:
    """The jobs and JobSets that provision made, of one namespace or of the current one."""
    kinds = "jobs"
    if _has_jobsets("list", context, namespace):
        # The Job that a JobSet makes has no label of ours, so nothing is listed twice.
        kinds += ",jobsets"
    arguments = ["get", kinds, "-l", MANAGED_LABEL, "-o", "json"]
    listing = ask_kubectl("jobs", arguments, context, namespace)
    return [parse_job(item) for item in listing["items"]]


def _has_jobsets(verb: str, context: str, namespace: str | None) -> bool:
    """Whether the cluster has JobSets, and lets this user list or delete them."""
    if "jobset.x-k8s.io" not in run_kubectl(["api-versions"], context):
        return False
    try:
        run_kubectl(["auth", "can-i", verb, "jobsets.jobset.x-k8s.io"], context, namespace)
    except InvalidSpec:  # it prints `no`
        return False
    return True


def parse_job(item: Mapping[str, Any]) -> KubernetesJob:
    """A Job or a JobSet, as `kubectl get -o json` shows it."""
    spec, status, metadata = item["spec"], item.get("status", {}), item["metadata"]
    jobs = [spec]
    is_active = bool(status.get("active"))
    if item.get("kind") == "JobSet":
        jobs = [replicated["template"]["spec"] for replicated in spec["replicatedJobs"]]
        is_active = any(row.get("active") for row in status.get("replicatedJobsStatus") or ())
    state, reason = "Pending", ""
    if is_active:
        state = "Running"
    if spec.get("suspend"):
        state, reason = "Suspended", "waits for its queue"
    for condition in status.get("conditions") or ():
        if condition["status"] == "True" and condition["type"] in ENDED:
            state = ENDED[condition["type"]]
            reason = condition.get("message") or condition.get("reason") or ""
    return KubernetesJob(
        name=metadata["name"],
        namespace=metadata.get("namespace", ""),
        kind=item.get("kind", "Job"),
        state=state,
        nodes=sum(job.get("completions") or 1 for job in jobs),
        reason=reason,
    )


def job_log(name: str, context: str = "", namespace: str | None = None) -> str:
    """What the pods of a job printed, node 0 first."""
    texts = []
    for pod in pods_of_job(name, context, namespace):
        pod_name = pod["metadata"]["name"]
        waiting = waiting_reason(pod)
        text = f"no log yet: {waiting}\n"
        if not waiting:
            text = run_kubectl(["logs", pod_name], context, namespace)
        texts.append(f"==> {pod_name}\n{text}")
    return "\n".join(texts)


def follow_log(
    name: str,
    show: Callable[[str], None],
    progress: Progress,
    context: str = "",
    namespace: str | None = None,
) -> str:
    """Show what the pods of a job print until all have ended; returns the job's state.

    Pods that Kubernetes starts again are followed as well.
    """
    ended: set[str] = set()
    reason = ""
    while True:
        jobs = [job for job in list_jobs(context, namespace) if job.name == name]
        has_ended = bool(jobs) and jobs[0].state in ENDED.values()
        if jobs and jobs[0].state == "Suspended":  # by its queue: no pods yet
            pods, waiting = [], jobs[0].reason
        else:
            pods = pods_of_job(name, context, namespace)
            waiting = next(filter(None, map(waiting_reason, pods)), "")
        if waiting != reason:
            reason = waiting
            progress.info(f"{name} waits: {waiting}" if waiting else f"{name} runs")
        uids = {pod["metadata"]["uid"] for pod in pods}
        if not waiting and not uids <= ended:
            arguments = ["logs", "--follow", "--prefix", "--selector", f"{NAME_LABEL}={name}"]
            arguments += ["--tail=-1", f"--max-log-requests={len(pods)}"]
            stream_kubectl(arguments, show, context, namespace)
            ended |= uids
        elif not jobs or has_ended:
            return jobs[0].state if jobs else "deleted"
        time.sleep(FOLLOW_S)


def pods_of_job(name: str, context: str = "", namespace: str | None = None) -> list[dict[str, Any]]:
    """Node 0 first. Raises InvalidSpec if there are none."""
    arguments = ["get", "pods", "-l", f"{NAME_LABEL}={name}", "-o", "json"]
    pods: list[dict[str, Any]] = ask_kubectl("pods", arguments, context, namespace)["items"]
    if not pods:
        raise InvalidSpec(f"Kubernetes has no pods for the job {name}.")
    pods.sort(key=lambda pod: int(pod["metadata"].get("annotations", {}).get(INDEX, 0)))
    return pods


def waiting_reason(pod: Mapping[str, Any]) -> str:
    """Why a pod has not started, in the words of Kubernetes; empty if it has."""
    status = pod.get("status", {})
    if status.get("phase", "Pending") != "Pending":
        return ""
    for container in status.get("containerStatuses") or ():
        waiting = container.get("state", {}).get("waiting")
        if waiting:
            return ": ".join(filter(None, (waiting.get("reason"), waiting.get("message"))))
    for condition in status.get("conditions") or ():
        if condition["status"] == "False" and condition.get("message"):
            return str(condition["message"])
    return "Pending"


def cancel(name: str, context: str = "", namespace: str | None = None) -> None:
    """Delete what a manifest of ours created. The pods get SIGTERM first."""
    labels = f"{MANAGED_LABEL},{NAME_LABEL}={name}"
    kinds = "jobs,services"
    if _has_jobsets("delete", context, namespace):
        kinds += ",jobsets"
    output = run_kubectl(["delete", kinds, "-l", labels, "--wait=false"], context, namespace)
    if "deleted" not in output:
        raise InvalidSpec(f"Kubernetes has no job {name} that provision made.")
