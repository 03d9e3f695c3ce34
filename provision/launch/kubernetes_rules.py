"""What Kubernetes refuses in the manifests that we write, although they fit its schemas.

The schemas (`kubernetes-validate --strict`) know types and fields. Names, references between
fields, closed sets of values and quantities are checked by the API server's own code
(k8s.io/kubernetes, pkg/apis/core/validation and pkg/apis/batch/validation), whose rules these are,
for the kinds and fields that our templates use. Some faults the server accepts in a Job, and its
pods cannot be created or started; those are marked. A lab's own template is checked too. Pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from provision.core.errors import InvalidSpec
from provision.core.yaml_text import YamlError, parse_yaml_documents

LABEL_LENGTH, SUBDOMAIN_LENGTH = 63, 253
# RFC 1035 and RFC 1123, as k8s.io/apimachinery's validation.go has them.
_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_DNS_1123 = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME_PART = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_QUANTITY = re.compile(r"[+-]?(\d+|\d+\.\d*|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?")
KINDS = {
    ("v1", "Service"),
    ("batch/v1", "Job"),
    ("jobset.x-k8s.io/v1alpha2", "JobSet"),
}
# Closed sets of values, by the field's name wherever it occurs.
ENUMS: Mapping[str, tuple[str, ...]] = {
    "restartPolicy": ("Never", "OnFailure"),  # of a Job's pods; others may also say Always
    "completionMode": ("NonIndexed", "Indexed"),
    "imagePullPolicy": ("Always", "IfNotPresent", "Never"),
    "dnsPolicy": ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"),
    # Accepted by the server; the kubelet knows no other medium.
    "medium": ("", "Memory", "HugePages", "HugePages-2Mi", "HugePages-1Gi"),
    "terminationMessagePolicy": ("File", "FallbackToLogsOnError"),
    "preemptionPolicy": ("Never", "PreemptLowerPriority"),
    "podReplacementPolicy": ("TerminatingOrFailed", "Failed"),
    "protocol": ("TCP", "UDP", "SCTP"),
}
OWN_RESOURCES = ("cpu", "memory", "ephemeral-storage", "hugepages-")
SELECTOR_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")


def check_manifests(text: str, source: str) -> None:
    """InvalidSpec with everything that Kubernetes would refuse. source: for the message."""
    try:
        documents = parse_yaml_documents(text)
    except YamlError as error:
        raise InvalidSpec(f"{source} is not YAML: {error.problem}.") from error
    problems = [problem for document in documents for problem in violations(document)]
    problems += _duplicate_objects(documents)
    if problems:
        raise InvalidSpec(
            f"Kubernetes would refuse {source}: {'; '.join(problems)}.",
            advice="Change the option that sets this, or the lab's own template.",
        )


def violations(document: Any) -> list[str]:
    """What is wrong in one object, each with the path of the field."""
    if not isinstance(document, Mapping):
        return ["an object is no mapping"]
    kind = (document.get("apiVersion"), document.get("kind"))
    if kind not in KINDS:
        return [f"{kind[0]} {kind[1]} is no kind of object that provision creates"]
    return list(
        dict.fromkeys(
            [
                *_metadata(document, f"{kind[1]}.metadata"),
                *_enums(document, str(kind[1])),
                *_BY_KIND[str(kind[1])](document),
            ]
        )
    )


def _duplicate_objects(documents: Sequence[Any]) -> list[str]:
    names = Counter(
        (document.get("kind"), (document.get("metadata") or {}).get("name"))
        for document in documents
        if isinstance(document, Mapping)
    )
    return [f"{kind} {name} is there twice" for (kind, name), count in names.items() if count > 1]


# Names and labels


def _metadata(document: Mapping[str, Any], path: str) -> Iterator[str]:
    metadata = document.get("metadata") or {}
    name = metadata.get("name")
    # A Service's name is a label of RFC 1035 (of RFC 1123 only since 1.34); a Job's name becomes a
    # label of its pods, and with the number of a pod a host name.
    pattern = _DNS_1035 if document["kind"] == "Service" else _DNS_1123
    if not isinstance(name, str) or not name:
        yield f"{path}.name is missing"
    elif not pattern.fullmatch(name) or len(name) > LABEL_LENGTH:
        yield f"{path}.name {name!r} is not a DNS label of at most {LABEL_LENGTH} characters"
    namespace = metadata.get("namespace")
    if namespace is not None and not _is_label(namespace):
        yield f"{path}.namespace {namespace!r} is not a DNS label"
    yield from _labels(metadata.get("labels"), f"{path}.labels")


def _labels(labels: Any, path: str) -> Iterator[str]:
    for key, value in (labels or {}).items():
        if not _is_qualified_name(key):
            yield f"{path}: {key!r} is not a label's key"
        if not isinstance(value, str):
            yield f"{path}.{key} is {value!r}, but labels are text"
        elif value and (not _NAME_PART.fullmatch(value) or len(value) > LABEL_LENGTH):
            yield f"{path}.{key} {value!r} is not a label's value"


def _is_label(text: Any) -> bool:
    return isinstance(text, str) and bool(_DNS_1123.fullmatch(text)) and len(text) <= LABEL_LENGTH


def _is_subdomain(text: Any) -> bool:
    is_text = isinstance(text, str)
    return is_text and bool(_SUBDOMAIN.fullmatch(text)) and len(text) <= SUBDOMAIN_LENGTH


def _is_qualified_name(text: Any) -> bool:
    """`name` or `prefix.domain/name`, as keys of labels and names of resources are."""
    if not isinstance(text, str):
        return False
    prefix, slash, name = text.rpartition("/")
    if slash and not _is_subdomain(prefix):
        return False
    return bool(_NAME_PART.fullmatch(name)) and len(name) <= LABEL_LENGTH


def _enums(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            allowed = ENUMS.get(str(key))
            if allowed is not None and item not in allowed:
                yield f"{path}.{key} is {item!r}, not one of {', '.join(filter(None, allowed))}"
            yield from _enums(item, f"{path}.{key}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _enums(item, f"{path}[{number}]")


# Services, Jobs, JobSets


def _service(service: Mapping[str, Any]) -> Iterator[str]:
    spec = service.get("spec") or {}
    if spec.get("clusterIP") not in (None, "None"):
        yield "Service.spec.clusterIP is not None: the Service of a job is headless"
    yield from _labels(spec.get("selector"), "Service.spec.selector")
    ports = spec.get("ports") or []
    for number, port in enumerate(ports):
        if len(ports) > 1 and not port.get("name"):
            yield f"Service.spec.ports[{number}] has no name, as each of several must have"
        if not _is_port(port.get("port")):
            yield f"Service.spec.ports[{number}].port {port.get('port')!r} is not a port"


def _job(job: Mapping[str, Any]) -> Iterator[str]:
    name = (job.get("metadata") or {}).get("name") or ""
    yield from _job_spec(job.get("spec") or {}, "Job.spec", name)


def _job_spec(spec: Mapping[str, Any], path: str, name: str) -> Iterator[str]:
    for key in ("parallelism", "completions", "backoffLimit"):
        if spec.get(key) is not None and not _is_count(spec[key], 0):
            yield f"{path}.{key} is {spec[key]!r}, not a number from 0"
    if spec.get("activeDeadlineSeconds") is not None and not _is_count(
        spec["activeDeadlineSeconds"], 0
    ):
        yield f"{path}.activeDeadlineSeconds is not a number from 0"
    if spec.get("completionMode") == "Indexed":
        completions = spec.get("completions")
        if not isinstance(completions, int) or not _is_count(completions, 1):
            yield f"{path}.completions is {completions!r}: an Indexed Job needs how many"
        elif len(f"{name}-{completions - 1}") > LABEL_LENGTH:
            yield f"{path}: {name}-{completions - 1} is too long for the host name of a pod"
    if spec.get("selector") is not None and not spec.get("manualSelector"):
        yield f"{path}.selector is set by Kubernetes itself"
    template = spec.get("template") or {}
    yield from _labels((template.get("metadata") or {}).get("labels"), f"{path}.template.labels")
    yield from _pod(template.get("spec") or {}, f"{path}.template.spec")


def _jobset(jobset: Mapping[str, Any]) -> Iterator[str]:
    name = (jobset.get("metadata") or {}).get("name") or ""
    replicated = (jobset.get("spec") or {}).get("replicatedJobs") or []
    if not replicated:
        yield "JobSet.spec.replicatedJobs is empty"
    yield from _duplicates(replicated, "name", "JobSet.spec.replicatedJobs")
    for number, each in enumerate(replicated):
        path = f"JobSet.spec.replicatedJobs[{number}]"
        if not _is_label(each.get("name")):
            yield f"{path}.name {each.get('name')!r} is not a DNS label"
        job_name = f"{name}-{each.get('name')}-0"
        spec = (each.get("template") or {}).get("spec") or {}
        if len(job_name) > LABEL_LENGTH:
            yield f"{path}: {job_name} is too long for the name of a Job"
        yield from _job_spec(spec, f"{path}.template.spec", job_name)


_BY_KIND = {"Service": _service, "Job": _job, "JobSet": _jobset}


# Pods


def _pod(pod: Mapping[str, Any], path: str) -> Iterator[str]:
    containers = pod.get("containers") or []
    if not containers:
        yield f"{path}.containers is empty"
    if "restartPolicy" not in pod:
        yield f"{path}.restartPolicy is missing: a Job's pods must say Never or OnFailure"
    if pod.get("subdomain") is not None and not _is_label(pod["subdomain"]):
        yield f"{path}.subdomain {pod['subdomain']!r} is not a DNS label"
    deadline = pod.get("activeDeadlineSeconds")
    if deadline is not None and not _is_count(deadline, 1):
        yield f"{path}.activeDeadlineSeconds is {deadline!r}, not a number from 1"
    volumes = pod.get("volumes") or []
    yield from _duplicates(volumes, "name", f"{path}.volumes")
    for number, volume in enumerate(volumes):
        yield from _volume(volume, f"{path}.volumes[{number}]")
    yield from _duplicates(containers, "name", f"{path}.containers")
    names = {volume.get("name") for volume in volumes}
    for number, container in enumerate(containers):
        yield from _container(container, f"{path}.containers[{number}]", names)
    yield from _user(pod.get("securityContext") or {}, f"{path}.securityContext")
    yield from _affinity(pod.get("affinity") or {}, f"{path}.affinity")


def _volume(volume: Mapping[str, Any], path: str) -> Iterator[str]:
    if not _is_label(volume.get("name")):
        yield f"{path}.name {volume.get('name')!r} is not a DNS label"
    sources = [key for key in volume if key != "name"]
    # Without any it is an emptyDir.
    if len(sources) > 1:
        yield f"{path} has {len(sources)} sources instead of one"
    host = volume.get("hostPath")
    if host is not None and (not host.get("path") or ".." in str(host["path"]).split("/")):
        yield f"{path}.hostPath.path {host.get('path')!r} is not a path without `..`"
    claim = volume.get("persistentVolumeClaim")
    # Accepted by the server, but no claim can have such a name, and the pod waits for it.
    if claim is not None and not _is_subdomain(claim.get("claimName")):
        yield f"{path}.persistentVolumeClaim.claimName {claim.get('claimName')!r} is not a name"
    memory = volume.get("emptyDir")
    if memory is not None and memory.get("sizeLimit") is not None:
        yield from _quantity(memory["sizeLimit"], f"{path}.emptyDir.sizeLimit")


def _container(container: Mapping[str, Any], path: str, volumes: set[Any]) -> Iterator[str]:
    if not _is_label(container.get("name")):
        yield f"{path}.name {container.get('name')!r} is not a DNS label"
    image = container.get("image")
    # Spaces around a name are refused in a pod, not in a Job.
    if not isinstance(image, str) or not image or image != image.strip():
        yield f"{path}.image {image!r} is not an image"
    mounts = container.get("volumeMounts") or []
    yield from _duplicates(mounts, "mountPath", f"{path}.volumeMounts")
    for number, mount in enumerate(mounts):
        if mount.get("name") not in volumes:
            yield f"{path}.volumeMounts[{number}].name {mount.get('name')!r} is no volume"
        # The colon is accepted by the server; runtimes split there.
        if not mount.get("mountPath") or ":" in str(mount["mountPath"]):
            yield f"{path}.volumeMounts[{number}].mountPath is not a path without `:`"
    for number, variable in enumerate(container.get("env") or []):
        if not _VARIABLE.fullmatch(str(variable.get("name") or "")):
            yield f"{path}.env[{number}].name {variable.get('name')!r} is not a variable's name"
        if variable.get("value") and variable.get("valueFrom"):
            yield f"{path}.env[{number}] has both a value and a source"
        if "value" in variable and not isinstance(variable["value"], str):
            yield f"{path}.env[{number}].value {variable['value']!r} is not text"
    for number, port in enumerate(container.get("ports") or []):
        if not _is_port(port.get("containerPort")):
            yield f"{path}.ports[{number}].containerPort is not a port"
    yield from _resources(container.get("resources") or {}, f"{path}.resources")
    yield from _user(container.get("securityContext") or {}, f"{path}.securityContext")


def _resources(resources: Mapping[str, Any], path: str) -> Iterator[str]:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for kind, quantities in (("limits", limits), ("requests", requests)):
        for name, value in quantities.items():
            if not _is_qualified_name(name):
                yield f"{path}.{kind}: {name!r} is not a resource"
            elif "/" not in name and not name.startswith(OWN_RESOURCES):
                yield f"{path}.{kind}: {name!r} is not a resource of Kubernetes itself"
            yield from _quantity(value, f"{path}.{kind}.{name}")
            if "/" in name and not re.fullmatch(r"\d+", str(value)):
                yield f"{path}.{kind}.{name} is {value!r}, but devices are counted"
    for name, value in requests.items():
        if "/" in name and limits.get(name) != value:
            yield f"{path}: {name} must have the same limit as request"


def _user(context: Mapping[str, Any], path: str) -> Iterator[str]:
    for key in ("runAsUser", "runAsGroup", "fsGroup"):
        if context.get(key) is not None and not _is_count(context[key], 0):
            yield f"{path}.{key} is {context[key]!r}, not the number of a user or group"
    if context.get("runAsNonRoot") and context.get("runAsUser") == 0:
        # Accepted by the server; the kubelet refuses to start the container.
        yield f"{path}: runAsNonRoot contradicts runAsUser 0"


def _affinity(affinity: Mapping[str, Any], path: str) -> Iterator[str]:
    required = (affinity.get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    for term in required.get("nodeSelectorTerms") or []:
        for each in term.get("matchExpressions") or []:
            if not _is_qualified_name(each.get("key")):
                yield f"{path}: {each.get('key')!r} is not a label's key"
            operator, values = each.get("operator"), each.get("values") or []
            if operator not in SELECTOR_OPERATORS:
                yield f"{path}: {operator!r} is not an operator"
            elif operator in ("In", "NotIn") and not values:
                yield f"{path}: {operator} needs values"
            elif operator in ("Exists", "DoesNotExist") and values:
                yield f"{path}: {operator} takes no values"
            yield from _labels({each.get("key"): value for value in values}, path)


def _duplicates(items: Sequence[Mapping[str, Any]], key: str, path: str) -> Iterator[str]:
    for value, count in Counter(item.get(key) for item in items).items():
        if count > 1:
            yield f"{path}: {value!r} is there {count} times"


def _quantity(value: Any, path: str) -> Iterator[str]:
    if not _QUANTITY.fullmatch(str(value)) or str(value).startswith("-"):
        yield f"{path} {value!r} is not a quantity"


def _is_count(value: Any, lowest: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= lowest


def _is_port(value: Any) -> bool:
    return _is_count(value, 1) and value < 65536
