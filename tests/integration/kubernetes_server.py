"""A real API server of Kubernetes with etcd, on loopback; it has no nodes and runs no pods.

`tools/build_kube_apiserver.sh` builds the server; PROVISION_TEST_KUBE_APISERVER names it.
"""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from provision_runtime.comm.addresses import free_port
from tests.integration.waiting import PATIENCE_S

TOKEN = "tests"
# Of the kinds of objects that provision creates, and of nodes.
PATHS = {
    "Service": "/api/v1/namespaces/default/services",
    "Job": "/apis/batch/v1/namespaces/default/jobs",
    "Node": "/api/v1/nodes",
}


@dataclass(frozen=True, kw_only=True)
class KubernetesServer:
    """url: https://HOST:PORT. kubeconfig: the file with which kubectl reaches it."""

    url: str
    kubeconfig: Path
    process: subprocess.Popen[bytes]

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The server's JSON. Raises HTTPError with its status for what it refuses."""
        request = Request(
            self.url + path,
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
            method=method,
        )
        # Its certificate is its own, made when it started.
        with urlopen(request, context=ssl._create_unverified_context(), timeout=60) as answer:
            return json.load(answer)

    def refusal(self, document: Mapping[str, Any]) -> str | None:
        """Why the server would not create an object; None if it would. Nothing is created."""
        try:
            self.ask("POST", f"{PATHS[document['kind']]}?dryRun=All", document)
        except HTTPError as error:
            message = json.load(error)["message"]
            # Bad requests and invalid objects; anything else is a fault of the test.
            assert error.code in (400, 422), f"{error.code}: {message}"
            return str(message)
        return None

    def create(self, document: Mapping[str, Any]) -> None:
        self.ask("POST", PATHS[document["kind"]], document)


@contextmanager
def kubernetes_server(folder: Path) -> Iterator[KubernetesServer]:
    """An empty cluster whose server and etcd live as long as the context."""
    program = os.environ["PROVISION_TEST_KUBE_APISERVER"]
    peers, clients, port = free_port(), free_port(), free_port()
    etcd_url = f"http://127.0.0.1:{clients}"
    etcd = [
        "etcd", "--data-dir", str(folder / "etcd"),
        "--listen-client-urls", etcd_url, "--advertise-client-urls", etcd_url,
        "--listen-peer-urls", f"http://127.0.0.1:{peers}",
    ]  # fmt: skip
    key = folder / "accounts.pem"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    tokens = folder / "tokens.csv"
    tokens.write_text(f"{TOKEN},admin,1,system:masters\n")
    server = [
        program, "--etcd-servers", etcd_url, "--service-cluster-ip-range", "10.0.0.0/24",
        "--bind-address", "127.0.0.1", "--secure-port", str(port), "--cert-dir", str(folder / "tls"),
        "--token-auth-file", str(tokens), "--authorization-mode", "RBAC",
        "--service-account-issuer", "https://localhost",
        "--service-account-key-file", str(key), "--service-account-signing-key-file", str(key),
        # Pods need an account that a controller makes, and there is none.
        "--disable-admission-plugins", "ServiceAccount",
    ]  # fmt: skip
    url = f"https://127.0.0.1:{port}"
    with _daemon(etcd, folder / "etcd.log"), _daemon(server, folder / "server.log") as process:
        cluster = KubernetesServer(
            url=url, kubeconfig=_write_kubeconfig(folder, url), process=process
        )
        _wait_until_ready(cluster, folder / "server.log")
        yield cluster


@contextmanager
def _daemon(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _write_kubeconfig(folder: Path, url: str) -> Path:
    path = folder / "kubeconfig"
    cluster = {"server": url, "insecure-skip-tls-verify": True}
    configuration = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "admin", "user": {"token": TOKEN}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
    }
    path.write_text(json.dumps(configuration))
    return path


def _wait_until_ready(cluster: KubernetesServer, log: Path) -> None:
    """The server makes its namespaces after it has begun to answer."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            cluster.ask("GET", "/api/v1/namespaces/default")
            return
        except (URLError, OSError) as error:
            assert cluster.process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < end, f"{error}\n{log.read_text()[-3000:]}"
        time.sleep(0.2)
