"""Our manifests, and what asks a cluster, against a real API server and the real kubectl.

The server is of 1.20, the last that Debian has the source of: it has no Indexed Jobs and no JobSet,
so it drops `completionMode` and takes no JobSet. It has no nodes that run anything.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from provision import launch
from provision.cli.main import cli
from tests.integration.kubernetes_server import KubernetesServer, kubernetes_server
from tests.results import parse_result
from tests.unit.launch.test_launch_contract import TRAIN, text
from tests.unit.verbs.test_launch_verbs import SPEC

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.kubernetes,
    pytest.mark.needs("etcd", "kubectl", "openssl"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesServer]:
    with kubernetes_server(tmp_path_factory.mktemp("kubernetes")) as cluster:
        for number, state in ((1, "True"), (2, "False")):
            cluster.create(node(number, state))
        yield cluster


def node(number: int, ready: str) -> dict[str, Any]:
    """As its kubelet registers it."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": f"node{number}",
            "labels": {
                "kubernetes.io/hostname": f"gpu{number}.lab",
                "pool": "h100",
                "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
            },
        },
        "status": {
            "allocatable": {"nvidia.com/gpu": "8", "cpu": "96", "memory": "1Ti", "pods": "110"},
            "capacity": {"nvidia.com/gpu": "8", "cpu": "96", "memory": "1Ti", "pods": "110"},
            "conditions": [{"type": "Ready", "status": ready}],
            "nodeInfo": {
                "architecture": "amd64", "kernelVersion": "6.1.0", "osImage": "Debian", "operatingSystem": "linux",
                "containerRuntimeVersion": "containerd://1.7", "kubeletVersion": "v1.20.2",
                "kubeProxyVersion": "v1.20.2", "machineID": "1", "systemUUID": "1", "bootID": "1",
            },
        },
    }  # fmt: skip


@pytest.fixture
def lab(server: KubernetesServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the environment toy, and kubectl's configuration for the server."""
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))
    monkeypatch.setenv("PROVISION_DATA", str(tmp_path / "data"))
    (tmp_path / "envs" / "toy").mkdir(parents=True)
    (tmp_path / "envs" / "toy" / "spec.yml").write_text(SPEC)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words))


def kubectl(*words: str) -> str:
    return subprocess.run(
        ["kubectl", *words], check=True, capture_output=True, text=True, timeout=120
    ).stdout


# Manifests


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"time_s": 600, "signal_s": 60, "requeue": 1, "cpus": 8},
        {"gpus": 8},
        {
            "memory_mib": 65536,
            "variables": (("A", "$(B)"),),
            "kubernetes": launch.KubernetesOptions(
                queue="q", scheduler="volcano", ttl_s=60, disk_mib=5, networks=("n",)
            ),
        },
    ],
)
def test_our_own_manifests(fields: dict[str, Any], server: KubernetesServer) -> None:
    service, job = yaml.safe_load_all(text("kubernetes", command=TRAIN, nodes=2, **fields))
    assert server.refusal(service) is None
    assert server.refusal(job) is None


# Nodes


def test_nodes(server: KubernetesServer, lab: Path) -> None:
    result = run("nodes", "list", "--on", "k8s:pool=h100", "--json")
    assert result.exit_code == 0, result.output
    first, second = parse_result(result.stdout)["nodes"]
    assert (first["name"], first["state"], first["gpus"]) == ("node1", "Ready", 8), first
    assert (second["name"], second["state"]) == ("node2", "NotReady"), second
    one = run("nodes", "list", "--on", "k8s:kubernetes.io/hostname in (gpu2.lab)")
    assert "node2" in one.stdout and "node1" not in one.stdout, one.output


@pytest.mark.parametrize(
    ("selector", "code", "message"),
    [
        ("k8s:pool=none", 3, "no node"),
        ("k8s:pool=a b", 3, "Kubernetes refused"),
        ("k8s:-bad/key/", 3, "Kubernetes refused"),
    ],
)
def test_selectors_that_match_nothing(
    selector: str, code: int, message: str, server: KubernetesServer, lab: Path
) -> None:
    result = run("nodes", "list", "--on", selector)
    assert result.exit_code == code, result.output
    assert message in result.stderr


def test_a_server_that_is_gone(
    server: KubernetesServer, lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configuration = json.loads(server.kubeconfig.read_text())
    configuration["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    (lab / "kubeconfig").write_text(json.dumps(configuration))
    monkeypatch.setenv("KUBECONFIG", str(lab / "kubeconfig"))
    result = run("nodes", "list", "--on", "k8s:pool=h100")
    assert result.exit_code == 8, result.output
    assert "The Kubernetes API server does not answer" in result.stderr


def test_a_token_that_is_refused(
    server: KubernetesServer, lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configuration = server.kubeconfig.read_text().replace('"tests"', '"other"')
    (lab / "kubeconfig").write_text(configuration)
    monkeypatch.setenv("KUBECONFIG", str(lab / "kubeconfig"))
    result = run("nodes", "list", "--on", "k8s:pool=h100")
    assert result.exit_code == 3, result.output
    assert "Kubernetes refused" in result.stderr and "logged in" in result.stderr


# Jobs

LAUNCH = ("launch", "toy", "--on", "k8s:pool=h100", "--image", "host/toy:1", "--nodes", "2")


def test_a_server_without_indexed_jobs_gets_none(server: KubernetesServer, lab: Path) -> None:
    result = run(*LAUNCH, "--", "hostname")
    assert result.exit_code == 3, result.output
    assert "completionMode" in result.stderr
    assert json.loads(kubectl("get", "jobs,services", "-l", "app.kubernetes.io/managed-by=provision", "-o", "json"))["items"] == []  # fmt: skip


def test_life_of_a_job(server: KubernetesServer, lab: Path) -> None:
    """No controller starts its pods here."""
    manifest = lab / "job.yaml"
    result = run(*LAUNCH, "--dry-run", "--", "hostname")
    assert result.exit_code == 0, result.output
    manifest.write_text(result.stdout)
    kubectl("create", "--validate=false", "-f", str(manifest))

    listed = run("jobs", "list", "--on", "k8s:pool=h100")
    assert listed.exit_code == 0, listed.output
    job, name, state, nodes = listed.stdout.splitlines()[1].split()[:4]
    assert (job, state, nodes) == (f"k8s:{name}", "Pending", "2")
    log = run("jobs", "log", job)
    assert log.exit_code == 3 and "has no pods for the job" in log.stderr, log.output
    canceled = run("jobs", "cancel", job)
    assert canceled.stdout == f"canceled: {job}\n", canceled.output
    own = ("-l", "app.kubernetes.io/managed-by=provision", "-o", "json")
    assert json.loads(kubectl("get", "services", *own))["items"] == []
    # Without its controller a Job waits for the collector of garbage; it is marked as deleted.
    assert all(item["metadata"].get("deletionTimestamp") for item in json.loads(kubectl("get", "jobs", *own))["items"])  # fmt: skip
    again = run("jobs", "cancel", "k8s:other")
    assert again.exit_code == 3 and "no job other that provision made" in again.stderr


def test_log_of_a_pod_that_waits(server: KubernetesServer, lab: Path) -> None:
    """kubectl itself has nothing but an error for it."""
    labels = {"app.kubernetes.io/name": "waits"}
    container = {"name": "waits", "image": "host/toy:1"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "waits-0", "labels": labels},
        "spec": {"containers": [container], "automountServiceAccountToken": False},
    }
    (lab / "pod.json").write_text(json.dumps(pod))
    kubectl("create", "--validate=false", "-f", str(lab / "pod.json"))
    log = run("jobs", "log", "k8s:waits")
    assert (log.exit_code, log.stdout) == (0, "==> waits-0\nno log yet: Pending\n"), log.output


def test_another_namespace(server: KubernetesServer, lab: Path) -> None:
    listed = run("jobs", "list", "--on", "k8s:pool=h100", "--namespace", "empty")
    assert listed.exit_code == 0, listed.output
    assert "k8s:" not in listed.stdout


def test_manifest_of_the_contract(server: KubernetesServer, lab: Path) -> None:
    """`image contract --format kubernetes` writes what this kubectl and server take."""
    (lab / "job.yaml").write_text(text("kubernetes", command=TRAIN, nodes=2))
    checked = kubectl("create", "--dry-run=server", "--validate=false", "-f", str(lab / "job.yaml"))
    assert "service/toy created (server dry run)" in checked
    assert "job.batch/toy created (server dry run)" in checked
