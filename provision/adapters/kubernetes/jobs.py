"""Jobs and JobSets of Kubernetes, through the user's kubectl."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from provision.adapters.kubernetes.command import ask_kubectl, run_kubectl, stream_kubectl
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


def submit(
    manifest: Path,
    name: str,
    secret: str,
    key: str | None,
    context: str = "",
    namespace: str | None = None,
) -> None:
    """Create the objects of a manifest, after the API server itself has checked all of them; then
    the Secret with the job's key, for which its pods wait, and which goes when the job goes.

    secret: its name. key: None: the job needs none. Raises InvalidSpec if the server refuses one.
    """
    create = ["create", "-f", str(manifest)]
    create_secret = ["create", "-f", "-"]
    document: dict[str, Any] = {"apiVersion": "v1", "kind": "Secret", "immutable": True}
    document.update(metadata={"name": secret}, stringData={"key": key})
    run_kubectl([*create, "--dry-run=server"], context, namespace)
    if key is not None:
        text = json.dumps(document)
        run_kubectl([*create_secret, "--dry-run=server"], context, namespace, stdin=text)
    run_kubectl(create, context, namespace)
    if key is None:
        return
    try:
        shown = ["get", "-f", str(manifest), "-o", "json"]
        created = ask_kubectl("created", shown, context, namespace)
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
        run_kubectl(create_secret, context, namespace, stdin=json.dumps(document))
    except BaseException:
        cancel(name, context, namespace)  # it would wait for its key for ever
        raise


def list_jobs(context: str = "", namespace: str | None = None) -> list[ListedJob]:
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
            pods, waiting = [], jobs[0].where
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
