"""A real registry (Debian's docker-registry) on loopback, a line to it that can be broken, and a small image to send."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from provision.core.types import Image
from provision.image import config, layers, oci_layout
from provision.image import registry as registries
from provision.image.layers import LayerEntry
from provision_runtime.comm.addresses import free_port
from tests.integration.test_image import Watching, resolution
from tests.unit.image.test_image_config import LOCK

BIG = 3 << 20


# The fields of a smoke report that every reader of a passport uses.
REPORT = {
    "schema": 2,
    "started_at": "2026-11-21T19:44:37Z",
    "verdict": "pass",
    "phases": [],
    "skipped": [],
}


def make_image(folder: Path, *, small: bytes = b"small") -> Image:
    """An image of two layers, as assemble.py writes it."""
    blobs = oci_layout.blobs(folder)
    blobs.mkdir(parents=True)
    contents = {
        "cuda": [
            LayerEntry.of(
                "opt/big", b"".join(hashlib.sha256(b"%d" % n).digest() for n in range(BIG // 32))
            )
        ]
    }
    contents["provision"] = [LayerEntry.of("opt/small", small)]
    written = [
        layers.write_layer(group, entries, blobs, 0, lambda _: None)
        for group, entries in contents.items()
    ]
    document = config.image_config(
        {"PATH": "/bin"}, config.labels(resolution(), LOCK, "base", None), written, 0
    )
    manifest = oci_layout.write(folder, document, written, {}, "provision/toy:1")
    return Image(
        reference="provision/toy:1", layout=folder, manifest_digest=manifest.manifest_digest, image_id=manifest.config_digest, base="base",
        base_digest="", lock_sha256=LOCK.sha256, layers=tuple(written),
    )  # fmt: skip


def push(toy: Image, place: str) -> registries.PushResult:
    return registries.push_image(toy, registries.parse_registry_reference(place, toy), Watching())


@contextmanager
def serving(folder: Path, *more: str) -> Iterator[str]:
    port = free_port()
    folder.mkdir(exist_ok=True)
    settings = [
        "version: 0.1",
        "log: {level: error}",
        f"storage: {{filesystem: {{rootdirectory: {folder / 'data'}}}}}",
    ]
    (folder / "config.yml").write_text(
        "\n".join([*settings, f"http: {{addr: 127.0.0.1:{port}}}", *more])
    )
    with subprocess.Popen(
        ["docker-registry", "serve", folder / "config.yml"], stderr=subprocess.DEVNULL
    ) as server:
        try:
            deadline = time.monotonic() + 30
            while socket.socket().connect_ex(("127.0.0.1", port)):
                assert server.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield f"127.0.0.1:{port}"
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A registry for the tests of a module, which name this among what they import."""
    with serving(tmp_path_factory.mktemp("registry")) as address:
        yield address


@dataclass
class Line:
    """Between us and the registry: passes requests on until `trouble` does something else with one."""

    behind: str
    trouble: Callable[[Line, BaseHTTPRequestHandler, bytes], bool]
    commands: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    @contextmanager
    def open(self) -> Iterator[str]:
        line = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                line.commands.append(self.command)
                line.paths.append(self.path)
                if line.trouble(line, self, body):
                    return
                headers = {
                    key: value for key, value in self.headers.items() if key.lower() != "host"
                }
                request = Request(
                    f"http://{line.behind}{self.path}",
                    data=body or None,
                    headers=headers,
                    method=self.command,
                )
                try:
                    answer = urlopen(request)
                except OSError as error:
                    answer = error  # an HTTPError is an answer too
                content = answer.read()
                self.send_response(answer.status)
                for key, value in answer.headers.items():
                    if key.lower() not in ("content-length", "transfer-encoding", "connection"):
                        self.send_header(key, value.replace(line.behind, self.headers["Host"]))
                for key, value in getattr(self, "passed", {}).items():
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content if self.command != "HEAD" else b"")

            do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = pass_on

            def log_message(self, *message: object) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            server.server_close()


def refuse(request: BaseHTTPRequestHandler, status: int, **headers: str) -> bool:
    content = json.dumps({"errors": [{"code": "TROUBLE", "message": f"status {status}"}]}).encode()
    request.send_response(status)
    for key, value in {"Content-Length": str(len(content)), **headers}.items():
        request.send_header(key.replace("_", "-"), value)
    request.end_headers()
    request.wfile.write(content if request.command != "HEAD" else b"")
    return True


def answer(request: BaseHTTPRequestHandler, content: bytes, **headers: str) -> bool:
    request.send_response(200)
    for key, value in {"Content-Length": str(len(content)), **headers}.items():
        request.send_header(key, value)
    request.end_headers()
    request.wfile.write(content)
    return True


def log_in(host: str, user: str, password: str) -> None:
    folder = Path(os.environ["DOCKER_CONFIG"])
    folder.mkdir(exist_ok=True)
    secret = base64.b64encode(f"{user}:{password}".encode()).decode()
    (folder / "config.json").write_text(json.dumps({"auths": {host: {"auth": secret}}}))


def htpasswd(user: str, password: str) -> str:
    bcrypt = pytest.importorskip("bcrypt")
    return f"{user}:{bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()}\n"
