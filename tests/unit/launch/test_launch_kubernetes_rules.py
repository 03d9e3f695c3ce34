"""What Kubernetes refuses although it fits the schemas. Each case breaks one field of a manifest of
ours, which the strict schema check still passes. tests/integration/test_kubernetes_server.py
compares the cases with a real API server."""

from __future__ import annotations

import copy
from typing import Any

import kubernetes_validate
import pytest
import yaml

from provision import launch
from provision.core.errors import InvalidSpec
from provision.launch.kubernetes_rules import violations
from tests.unit.launch.test_launch_contract import TRAIN, text

VERSION = "1.34"


def manifests(**fields: Any) -> dict[str, dict[str, Any]]:
    """A Service, a Job and a JobSet as we write them, by their kinds."""
    service, job = yaml.safe_load_all(text("kubernetes", command=TRAIN, nodes=2, **fields))
    jobset = yaml.safe_load(text("jobset", command=TRAIN, nodes=2, **fields))
    return {"Service": service, "Job": job, "JobSet": jobset}


def changed(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy in which the value at a path like `spec.template.spec.volumes.0.name` is another one.

    None removes it; a path that ends with + appends.
    """
    result = copy.deepcopy(document)
    *parents, last = path.rstrip("+").split(".")
    target: Any = result
    for step in parents:
        target = target[int(step)] if isinstance(target, list) else target[step]
    key: Any = int(last) if isinstance(target, list) else last
    if path.endswith("+"):
        target[key].append(value)
    elif value is None:
        del target[key]
    else:
        target[key] = value
    return result


POD = "spec.template.spec"
CONTAINER = f"{POD}.containers.0"
LONG = "a" * 64
CASES: list[tuple[str, str, Any, str]] = [
    # names
    ("Service", "metadata.name", "2gpu", "not a DNS label"),
    ("Service", "metadata.name", "train.a", "not a DNS label"),
    ("Job", "metadata.name", "Train", "not a DNS label"),
    ("Job", "metadata.name", "train_1", "not a DNS label"),
    ("Job", "metadata.name", LONG, "not a DNS label"),
    ("Job", "metadata.name", "", "name is missing"),
    ("Job", "metadata.name", "a" * 62, "too long for the host name of a pod"),
    ("Job", "metadata.namespace", "Lab", "not a DNS label"),
    ("Job", f"{CONTAINER}.name", "My Container", "not a DNS label"),
    ("Job", f"{POD}.subdomain", "a.b", "subdomain 'a.b' is not a DNS label"),
    ("Job", f"{POD}.volumes.0.name", "Shm", "not a DNS label"),
    # labels
    ("Job", "metadata.labels", {"a b": "c"}, "'a b' is not a label's key"),
    ("Job", "metadata.labels", {"a": LONG}, "is not a label's value"),
    ("Job", "metadata.labels", {"a": "-x"}, "is not a label's value"),
    ("Job", "spec.template.metadata.labels", {"a": "b c"}, "is not a label's value"),
    ("Service", "spec.selector", {"a": "b/c"}, "is not a label's value"),
    # images and commands
    ("Job", f"{CONTAINER}.image", "", "image '' is not an image"),
    ("Job", f"{CONTAINER}.image", " a/b:1", "is not an image"),
    ("Job", f"{CONTAINER}.image", None, "image None is not an image"),
    ("Job", f"{CONTAINER}.env.0.name", "A B", "is not a variable's name"),
    ("Job", f"{CONTAINER}.env.0.value", "x", "both a value and a source"),
    ("Job", f"{POD}.containers", [], "containers is empty"),
    # volumes
    ("Job", f"{POD}.volumes+", {"name": "shm", "emptyDir": {}}, "'shm' is there 2 times"),
    (
        "Job",
        f"{POD}.volumes+",
        {"name": "two", "emptyDir": {}, "hostPath": {"path": "/a"}},
        "2 sources instead of one",
    ),
    ("Job", f"{POD}.volumes+", {"name": "up", "hostPath": {"path": "/a/../b"}}, "without `..`"),
    (
        "Job",
        f"{POD}.volumes+",
        {"name": "claim", "persistentVolumeClaim": {"claimName": "A_b"}},
        "claimName 'A_b' is not a name",
    ),
    ("Job", f"{CONTAINER}.volumeMounts.0.name", "gone", "'gone' is no volume"),
    ("Job", f"{CONTAINER}.volumeMounts.0.mountPath", "/a:b", "not a path without `:`"),
    (
        "Job",
        f"{CONTAINER}.volumeMounts+",
        {"name": "shm", "mountPath": "/dev/shm"},
        "'/dev/shm' is there 2 times",
    ),
    # closed sets of values
    ("Job", f"{POD}.restartPolicy", "Always", "restartPolicy is 'Always', not one of Never"),
    ("Job", f"{POD}.restartPolicy", "never", "restartPolicy is 'never'"),
    ("Job", f"{POD}.restartPolicy", None, "restartPolicy is missing"),
    ("Job", "spec.completionMode", "indexed", "completionMode is 'indexed'"),
    ("Job", f"{POD}.dnsPolicy", "HostNet", "dnsPolicy is 'HostNet'"),
    ("Job", f"{CONTAINER}.imagePullPolicy", "Missing", "imagePullPolicy is 'Missing'"),
    ("Job", f"{POD}.volumes.0.emptyDir.medium", "memory", "medium is 'memory'"),
    # numbers and quantities
    ("Job", "spec.completions", None, "an Indexed Job needs how many"),
    ("Job", "spec.backoffLimit", -1, "backoffLimit is -1"),
    ("Job", f"{POD}.activeDeadlineSeconds", 0, "not a number from 1"),
    ("Job", f"{POD}.volumes.0.emptyDir.sizeLimit", "8 GB", "is not a quantity"),
    ("Job", f"{CONTAINER}.resources.limits", {"nvidia.com/gpu": "1.5"}, "devices are counted"),
    ("Job", f"{CONTAINER}.resources.limits", {"gpu": "1"}, "not a resource of Kubernetes itself"),
    ("Job", f"{CONTAINER}.resources.limits", {"a b/gpu": "1"}, "is not a resource"),
    (
        "Job",
        f"{CONTAINER}.resources.requests",
        {"nvidia.com/gpu": "2"},
        "must have the same limit as request",
    ),
    ("Job", f"{CONTAINER}.ports", [{"containerPort": 70000}], "containerPort is not a port"),
    ("Service", "spec.ports", [{"port": 0}], "port 0 is not a port"),
    ("Service", "spec.ports", [{"port": 1}, {"port": 2, "name": "b"}], "has no name"),
    # others
    ("Service", "spec.clusterIP", "10.0.0.1", "the Service of a job is headless"),
    ("Job", "spec.selector", {"matchLabels": {"a": "b"}}, "selector is set by Kubernetes"),
    ("Job", f"{POD}.securityContext.runAsUser", 0, "runAsNonRoot contradicts runAsUser 0"),
    ("Job", f"{POD}.securityContext.fsGroup", -1, "not the number of a user or group"),
]
AFFINITY = f"{POD}.affinity.nodeAffinity"
TERMS = "requiredDuringSchedulingIgnoredDuringExecution"
SELECTORS: list[tuple[dict[str, Any], str]] = [
    ({"key": "a", "operator": "in", "values": ["b"]}, "'in' is not an operator"),
    ({"key": "a", "operator": "In"}, "In needs values"),
    ({"key": "a", "operator": "Exists", "values": ["b"]}, "Exists takes no values"),
    ({"key": "a b", "operator": "Exists"}, "'a b' is not a label's key"),
    ({"key": "a", "operator": "In", "values": ["b c"]}, "is not a label's value"),
]


@pytest.mark.parametrize(("kind", "path", "value", "message"), CASES)
def test_what_the_schemas_pass_and_kubernetes_refuses(
    kind: str, path: str, value: Any, message: str
) -> None:
    document = changed(manifests()[kind], path, value)
    kubernetes_validate.validate(document, VERSION, strict=True)
    assert [problem for problem in violations(document) if message in problem], violations(document)


@pytest.mark.parametrize(("expression", "message"), SELECTORS)
def test_node_selectors(expression: dict[str, Any], message: str) -> None:
    terms = {TERMS: {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
    document = changed(manifests()["Job"], AFFINITY, terms)
    kubernetes_validate.validate(document, VERSION, strict=True)
    assert [problem for problem in violations(document) if message in problem]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("metadata.name", "a" * 60, "too long for the name of a Job"),
        ("spec.replicatedJobs", [], "replicatedJobs is empty"),
        ("spec.replicatedJobs.0.name", "Node", "is not a DNS label"),
        ("spec.replicatedJobs.0.template.spec.template.spec.containers.0.image", "", "an image"),
    ],
)
def test_jobsets(path: str, value: Any, message: str) -> None:
    document = changed(manifests()["JobSet"], path, value)
    assert [problem for problem in violations(document) if message in problem]


def test_our_own_manifests_break_no_rule() -> None:
    for document in manifests(time_s=600, signal_s=60, requeue=1, cpus=8).values():
        assert violations(document) == []


def test_two_objects_of_one_name_are_refused() -> None:
    manifest = text("kubernetes", command=TRAIN, nodes=2)
    with pytest.raises(InvalidSpec, match="Service toy is there twice; Job toy is there twice"):
        launch.check_manifests(f"{manifest}\n---\n{manifest}", "the manifest")


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ("a: [", "the manifest is not YAML"),
        ("- 1", "an object is no mapping"),
        ("{kind: Pod, apiVersion: v1}", "v1 Pod is no kind of object that provision creates"),
    ],
)
def test_what_is_no_manifest(manifest: str, message: str) -> None:
    with pytest.raises(InvalidSpec, match=message):
        launch.check_manifests(manifest, "the manifest")
