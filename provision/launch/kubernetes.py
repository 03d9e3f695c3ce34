"""A job in the terms of Kubernetes: node selectors, resources, and the names by which its pods find
each other. Pure; what Kubernetes refuses, its own server says (adapters/kubernetes/jobs.py).
"""

from __future__ import annotations

import re

from provision.core.errors import InvalidSpec
from provision.launch.jobs import JobSpec, KubernetesOptions, NodeRequirement

# Images of many gigabytes are pulled before a pod starts, and pods may wait for GPUs one by one:
# without a limit, jobs that each hold a part of the GPUs wait for each other for ever.
WAIT_S = 1800
# The replicated job of a JobSet; its name is part of its pods' names.
REPLICATED_JOB = "node"
_TERM = re.compile(r"\s*(!?)\s*([A-Za-z0-9_./-]+)\s*(?:(==|=|!=)\s*([A-Za-z0-9_.-]*))?\s*")
_ANNOTATION = re.compile(
    r"((?:[A-Za-z0-9.-]+/)?[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?)=(.*)", re.S
)
GPU_RESOURCE, GPU_PRODUCT = "nvidia.com/gpu", "nvidia.com/gpu.product"
# Types of GPUs that are a part of one, as NVIDIA's device plugin names their resources.
MIG = "mig-"
VOLCANO = "volcano"
_RESOURCE = re.compile(r"([A-Za-z0-9._-]+/[A-Za-z0-9._-]+)(?:=(\d+))?")


def parse_selector(text: str) -> tuple[NodeRequirement, ...]:
    """The terms of a label selector, as kubectl reads it, but for sets. Raises InvalidSpec."""
    requirements = []
    for term in text.split(",") if text.strip() else ():
        match = _TERM.fullmatch(term)
        if match is None or (match[1] and match[3]):
            raise InvalidSpec(
                f"{term.strip()!r} in {text!r} is not a term of a label selector.",
                advice="Write KEY=VALUE, KEY!=VALUE, KEY or !KEY.",
            )
        negation, key, operator, value = match.groups()
        name = "DoesNotExist" if negation else "Exists"
        if operator:
            name = "NotIn" if operator == "!=" else "In"
        values = (value,) if operator else ()
        requirements.append(NodeRequirement(key=key, operator=name, values=values))
    return tuple(requirements)


def parse_resource(text: str) -> tuple[str, int]:
    """`rdma/hca_shared_devices_a=2`, by default 1 of it. Raises InvalidSpec."""
    match = _RESOURCE.fullmatch(text)
    if match is None:
        raise InvalidSpec(
            f"{text!r} is not a resource.",
            advice="Write it as `kubectl describe node` lists it, such as rdma/hca_shared_devices_a "
            "or nvidia.com/hostdev=2.",
        )
    return match[1], int(match[2] or 1)


def parse_annotation(text: str) -> tuple[str, str]:
    """`KEY=VALUE`. Raises InvalidSpec."""
    match = _ANNOTATION.fullmatch(text)
    if match is None:
        raise InvalidSpec(f"{text!r} is not an annotation.", advice="Write DOMAIN/NAME=VALUE.")
    return match[1], match[2]


def pod_annotations(options: KubernetesOptions) -> dict[str, str]:
    """Where the scheduler places the pods together, which networks they are attached to, and the
    user's own."""
    annotations = {}
    if options.topology:
        strength, colon, label = options.topology.partition(":")
        if not colon:
            strength, label = "required", options.topology
        annotations[f"kueue.x-k8s.io/podset-{strength}-topology"] = label
    if options.scheduler == VOLCANO and options.queue:
        annotations["scheduling.volcano.sh/queue-name"] = options.queue
    if options.networks:
        annotations["k8s.v1.cni.cncf.io/networks"] = ",".join(options.networks)
    return {**annotations, **dict(options.annotations)}


def gpu_resource(gpu_type: str) -> str:
    """What a pod asks for. Whole GPUs of any type are one resource; the type is a label of nodes."""
    return f"nvidia.com/{gpu_type}" if gpu_type.startswith(MIG) else GPU_RESOURCE


def head_name(job: JobSpec, *, is_jobset: bool) -> str:
    """The name of node 0's pod, for the other pods. Kubernetes replaces the variable; the search
    list of every pod appends the cluster's domain."""
    pod = f"{job.name}-{REPLICATED_JOB}-0-0" if is_jobset else f"{job.name}-0"
    return f"{pod}.{job.name}.$(POD_NAMESPACE).svc"


def key_secret(job: JobSpec) -> str:
    """The name of the Secret with the key by which the job's pods know each other."""
    return f"{job.name}-key"
