"""Jobs and JobSets of Kubernetes, through the user's kubectl."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from provision.adapters.kubernetes.command import Kubectl
from provision.core.errors import InvalidSpec
from provision.core.types import ListedJob, Progress

MANAGED_LABEL = "app.kubernetes.io/managed-by=provision"
NAME_LABEL = "app.kubernetes.io/name"
INDEX = "batch.kubernetes.io/job-completion-index"
# Of a job's id, which so names its engine.
PREFIX = "k8s:"
FOLLOW_S = 2.0
# Conditions that end a job, as we name its state; the second is a JobSet's.
ENDED = {"Complete": "Complete", "Completed": "Complete", "Failed": "Failed"}


def submit(kubectl: Kubectl, manifest: Path, name: str, secret: str, key: str | None) -> None:
    """Create the objects of a manifest, after the API server itself has checked all of them; then
    the Secret with the job's key, for which its pods wait, and which goes when the job goes.

    secret: its name. key: None: the job needs none. Raises InvalidSpec if the server refuses one.
    """
    document: dict[str, Any] = {"apiVersion": "v1", "kind": "Secret", "immutable": True}
    document.update(metadata={"name": secret}, stringData={"key": key})
    kubectl.run("create", "-f", str(manifest), "--dry-run=server")
    if key is not None:
        kubectl.run("create", "-f", "-", "--dry-run=server", stdin=json.dumps(document))
    kubectl.run("create", "-f", str(manifest))
    if key is None:
        return
    try:
        created = kubectl.ask("created", "get", "-f", str(manifest))
        document["metadata"]["ownerReferences"] = [
            {
                "apiVersion": item["apiVersion"],
                "kind": item["kind"],
                "name": item["metadata"]["name"],
                "uid": item["metadata"]["uid"],
            }
            for item in created.get("items", [created])
            if item["kind"] in ("Job", "JobSet")
        ]
        kubectl.run("create", "-f", "-", stdin=json.dumps(document))
    except BaseException:
        cancel(kubectl, name)  # it would wait for its key for ever
        raise


def list_jobs(kubectl: Kubectl) -> list[ListedJob]:
    """The jobs and JobSets that provision made, of one namespace or of the current one."""
    # The Job that a JobSet makes has no label of ours, so nothing is listed twice.
    kinds = "jobs,jobsets" if _has_jobsets(kubectl, "list") else "jobs"
    listing = kubectl.ask("jobs", "get", kinds, "-l", MANAGED_LABEL)
    return [parse_job(item) for item in listing["items"]]


def _has_jobsets(kubectl: Kubectl, verb: str) -> bool:
    """Whether the cluster has JobSets, and lets this user list or delete them."""
    if "jobset.x-k8s.io" not in kubectl.run("api-versions"):
        return False
    try:
        kubectl.run("auth", "can-i", verb, "jobsets.jobset.x-k8s.io")
    except InvalidSpec:  # it prints `no`
        return False
    return True


def parse_job(item: Mapping[str, Any]) -> ListedJob:
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
    return ListedJob(
        id=PREFIX + metadata["name"],
        name=metadata["name"],
        state=state,
        nodes=sum(job.get("completions") or 1 for job in jobs),
        where=reason,
    )


def job_log(kubectl: Kubectl, name: str) -> str:
    """What the pods of a job printed, node 0 first."""
    texts = []
    for pod in pods_of_job(kubectl, name):
        pod_name, waiting = pod["metadata"]["name"], waiting_reason(pod)
        text = f"no log yet: {waiting}\n" if waiting else kubectl.run("logs", pod_name)
        texts.append(f"==> {pod_name}\n{text}")
    return "\n".join(texts)


def follow_log(kubectl: Kubectl, name: str, show: Callable[[str], None], progress: Progress) -> str:
    """Show what the pods of a job print until all have ended; returns the job's state.

    Pods that Kubernetes starts again are followed as well.
    """
    ended: set[str] = set()
    reason = ""
    while True:
        job = next((job for job in list_jobs(kubectl) if job.name == name), None)
        if job and job.state == "Suspended":  # by its queue: no pods yet
            pods, waiting = [], job.where
        else:
            pods = pods_of_job(kubectl, name)
            waiting = next(filter(None, map(waiting_reason, pods)), "")
        if waiting != reason:
            reason = waiting
            progress.info(f"{name} waits: {waiting}" if waiting else f"{name} runs")
        uids = {pod["metadata"]["uid"] for pod in pods}
        if not waiting and not uids <= ended:
            arguments = ["logs", "--follow", "--prefix", "--selector", f"{NAME_LABEL}={name}"]
            arguments += ["--tail=-1", f"--max-log-requests={len(pods)}"]
            kubectl.stream(*arguments, on_line=show)
            ended |= uids
        elif job is None or job.state in ENDED.values():
            return job.state if job else "deleted"
        time.sleep(FOLLOW_S)


def pods_of_job(kubectl: Kubectl, name: str) -> list[dict[str, Any]]:
    """Node 0 first. Raises InvalidSpec if there are none."""
    listing = kubectl.ask("pods", "get", "pods", "-l", f"{NAME_LABEL}={name}")
    pods: list[dict[str, Any]] = listing["items"]
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


def cancel(kubectl: Kubectl, name: str) -> None:
    """Delete what a manifest of ours created. The pods get SIGTERM first."""
    labels = f"{MANAGED_LABEL},{NAME_LABEL}={name}"
    kinds = "jobs,services,jobsets" if _has_jobsets(kubectl, "delete") else "jobs,services"
    if "deleted" not in kubectl.run("delete", kinds, "-l", labels, "--wait=false"):
        raise InvalidSpec(f"Kubernetes has no job {name} that provision made.")
