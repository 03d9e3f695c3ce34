"""Images to a real registry (Debian's docker-registry) on loopback, also over a line that breaks."""

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
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from provision.errors import IntegrityError, InvalidSpec, ToolFailed, Unreachable
from provision.inside.smoke.launcher import free_port
from provision.model import Image
from provision.pipeline import image
from provision.pipeline.image import config, layers, oci, registry
from provision.pipeline.image.contents import Entry
from tests.integration.test_image import Watching, resolution
from tests.unit.test_image_config import LOCK

pytestmark = pytest.mark.needs("docker-registry")

BIG = 3 << 20
SKOPEO = ["skopeo", "copy", "--quiet", "--insecure-policy", "--src-tls-verify=false", "--preserve-digests"]


def made(folder: Path, *, small: bytes = b"small") -> Image:
    """An image of two layers, as assemble.py writes it."""
    blobs = oci.blobs(folder)
    blobs.mkdir(parents=True)
    contents = {"cuda": [Entry.of("opt/big", b"".join(hashlib.sha256(b"%d" % n).digest() for n in range(BIG // 32)))]}
    contents["provision"] = [Entry.of("opt/small", small)]
    written = [layers.write(group, entries, blobs, 0, lambda _: None) for group, entries in contents.items()]
    document = config.image_config({"PATH": "/bin"}, config.labels(resolution(), LOCK, "base", None), written, 0)
    done = oci.write(folder, document, written, {}, "provision/toy:1")
    return Image(
        reference="provision/toy:1", layout=folder, manifest_digest=done.manifest_digest, image_id=done.config_digest, base="base",
        base_digest="", lock_sha256=LOCK.sha256, layers=tuple(written),
    )  # fmt: skip


@contextmanager
def serving(folder: Path, *more: str) -> Iterator[str]:
    port = free_port()
    folder.mkdir(exist_ok=True)
    settings = ["version: 0.1", "log: {level: error}", f"storage: {{filesystem: {{rootdirectory: {folder / 'data'}}}}}"]
    (folder / "config.yml").write_text("\n".join([*settings, f"http: {{addr: 127.0.0.1:{port}}}", *more]))
    with subprocess.Popen(["docker-registry", "serve", folder / "config.yml"], stderr=subprocess.DEVNULL) as server:
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
    with serving(tmp_path_factory.mktemp("registry")) as found:
        yield found


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Small pieces and short pauses; and nobody's real credentials."""
    monkeypatch.setattr(registry, "CHUNK", 1 << 20)
    monkeypatch.setattr(registry, "PAUSE_S", 0.01)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))


def manifest(host: str, name: str, tag: str) -> bytes:
    request = Request(f"http://{host}/v2/{name}/manifests/{tag}", headers={"Accept": oci.MANIFEST})
    with urlopen(request) as answer:
        return bytes(answer.read())


def test_what_is_there_already_is_not_sent(host: str, tmp_path: Path) -> None:
    first = made(tmp_path / "first")
    size = sum(layer.size for layer in first.layers) + oci.blob(first.layout, first.image_id).stat().st_size
    pushed = image.push(first, image.target(f"{host}/lab/toy", first), Watching())
    assert (pushed.sent, pushed.present, pushed.tag) == (size, 0, f"{host}/lab/toy:1")
    assert pushed.reference == f"{host}/lab/toy@{first.manifest_digest}"
    assert f"sha256:{hashlib.sha256(manifest(host, 'lab/toy', '1')).hexdigest()}" == first.manifest_digest
    assert image.push(first, image.target(f"{host}/lab/toy:again"), Watching()).sent == 0
    second = made(tmp_path / "second", small=b"changed")
    assert image.push(second, image.target(f"{host}/lab/toy:2"), Watching()).sent < size / 50


@pytest.mark.needs("skopeo")
def test_skopeo_copies_what_was_pushed(host: str, tmp_path: Path) -> None:
    toy = made(tmp_path / "toy")
    image.push(toy, image.target(f"{host}/lab/copied:x"), Watching())
    source = f"docker://{host}/lab/copied:x"
    subprocess.run([*SKOPEO, source, f"oci:{tmp_path / 'out'}"], check=True)
    assert json.loads((tmp_path / "out" / "index.json").read_text())["manifests"][0]["digest"] == toy.manifest_digest


@dataclass
class Line:
    """Between us and the registry: passes requests on until `trouble` does something else with one."""

    behind: str
    trouble: Callable[[Line, BaseHTTPRequestHandler, bytes], bool]
    seen: list[str] = field(default_factory=list)

    @contextmanager
    def open(self) -> Iterator[str]:
        line = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                line.seen.append(self.command)
                if line.trouble(line, self, body):
                    return
                headers = {key: value for key, value in self.headers.items() if key.lower() != "host"}
                request = Request(f"http://{line.behind}{self.path}", data=body or None, headers=headers, method=self.command)
                try:
                    answer = urlopen(request)
                except OSError as error:
                    answer = error  # an HTTPError is an answer too
                content = answer.read()
                self.send_response(answer.status)
                for key, value in answer.headers.items():
                    if key.lower() not in ("content-length", "transfer-encoding", "connection"):
                        self.send_header(key, value.replace(line.behind, self.headers["Host"]))
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content if self.command != "HEAD" else b"")

            do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = pass_on

            def log_message(self, *words: object) -> None: ...

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


def hang_up(line: Line, request: BaseHTTPRequestHandler, body: bytes) -> bool:
    """The second and the fourth piece are lost on the way."""
    if request.command == "PATCH" and line.seen.count("PATCH") in (2, 4):
        request.connection.shutdown(socket.SHUT_RDWR)
        return True
    return False


def busy(line: Line, request: BaseHTTPRequestHandler, body: bytes) -> bool:
    """Every kind of request is told to come again, once."""
    first = line.seen.count(request.command) == 1
    return first and refuse(request, 429 if request.command in ("POST", "HEAD") else 503, Retry_After="0")


def forgotten(line: Line, request: BaseHTTPRequestHandler, body: bytes) -> bool:
    """The upload is gone after its second piece: the registry was restarted."""
    return line.seen.count("PATCH") == 2 and request.command in ("PATCH", "GET") and refuse(request, 404)


@pytest.mark.parametrize("trouble", [hang_up, busy, forgotten])
def test_what_broke_off_goes_on(host: str, tmp_path: Path, trouble: Callable[..., bool]) -> None:
    toy = made(tmp_path / "toy")
    line = Line(host, trouble)
    progress = Watching()
    name = f"lab/{trouble.__name__.replace('_', '-')}"
    with line.open() as here:
        pushed = image.push(toy, image.target(f"{here}/{name}:1"), progress)
    assert f"sha256:{hashlib.sha256(manifest(host, name, '1')).hexdigest()}" == toy.manifest_digest
    assert pushed.sent == progress.advanced == sum(progress.meters.values())
    if trouble is hang_up:  # what had come was not sent again: 4 + 1 pieces of two layers, the config, and the two that were lost
        assert line.seen.count("PATCH") == 8


def test_a_registry_that_stays_away_is_named(host: str, tmp_path: Path) -> None:
    toy = made(tmp_path / "toy")
    with pytest.raises(Unreachable, match="does not answer"):
        image.push(toy, image.target(f"127.0.0.1:{free_port()}/lab/toy"), Watching())
    with (
        Line(host, lambda line, request, body: refuse(request, 500)).open() as here,
        pytest.raises(ToolFailed, match="status 500"),
    ):
        image.push(toy, image.target(f"{here}/lab/toy"), Watching())


def log_in(host: str, user: str, password: str) -> None:
    folder = Path(os.environ["DOCKER_CONFIG"])
    folder.mkdir(exist_ok=True)
    secret = base64.b64encode(f"{user}:{password}".encode()).decode()
    (folder / "config.json").write_text(json.dumps({"auths": {host: {"auth": secret}}}))


def htpasswd(user: str, password: str) -> str:
    bcrypt = pytest.importorskip("bcrypt")
    return f"{user}:{bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()}\n"


def test_the_user_of_docker_login_is_asked_for_and_another_is_refused(tmp_path: Path) -> None:
    toy = made(tmp_path / "toy")
    (tmp_path / "users").write_text(htpasswd("lab", "secret"))
    with serving(tmp_path / "registry", f"auth: {{htpasswd: {{realm: lab, path: {tmp_path / 'users'}}}}}") as host:
        place = image.target(f"{host}/lab/toy")
        with pytest.raises(ToolFailed, match="docker login"):
            image.push(toy, place, Watching())
        log_in(host, "lab", "wrong")
        with pytest.raises(ToolFailed, match="docker login"):
            image.push(toy, place, Watching())
        log_in(host, "lab", "secret")
        assert image.push(toy, place, Watching()).sent > BIG


def test_a_token_is_fetched_where_the_registry_says(host: str, tmp_path: Path) -> None:
    """As hosted registries have it: 401 names a place that gives a token to who is known."""
    toy = made(tmp_path / "toy")
    asked: list[str] = []

    def guarded(line: Line, request: BaseHTTPRequestHandler, body: bytes) -> bool:
        own = f"127.0.0.1:{request.server.server_port}"  # type: ignore[attr-defined]
        if request.path.startswith("/token"):
            asked.append(f"{request.path} {request.headers.get('Authorization', '')}")
            content = json.dumps({"token": "opensesame"}).encode()
            request.send_response(200)
            request.send_header("Content-Length", str(len(content)))
            request.end_headers()
            request.wfile.write(content)
            return True
        if request.headers.get("Authorization") == "Bearer opensesame":
            del request.headers["Authorization"]
            return False
        challenge = f'Bearer realm="http://{own}/token",service="lab",scope="repository:lab/token:pull,push"'
        return refuse(request, 401, WWW_Authenticate=challenge)

    with Line(host, guarded).open() as here:
        log_in(here, "lab", "secret")
        assert image.push(toy, image.target(f"{here}/lab/token"), Watching()).sent > BIG
    secret = base64.b64encode(b"lab:secret").decode()
    assert asked == [f"/token?service=lab&scope=repository%3Alab%2Ftoken%3Apull%2Cpush Basic {secret}"]


def test_a_layer_that_is_gone_or_changed_is_not_pushed(host: str, tmp_path: Path) -> None:
    toy = made(tmp_path / "toy")
    blob = oci.blob(toy.layout, toy.layers[0].digest)
    content = bytearray(blob.read_bytes())
    content[5000] ^= 1
    blob.write_bytes(content)
    with pytest.raises(ToolFailed, match="DIGEST_INVALID"):
        image.push(toy, image.target(f"{host}/lab/flipped"), Watching())
    blob.write_bytes(content[:-1])
    with pytest.raises(IntegrityError, match="not the whole image"):
        image.push(toy, image.target(f"{host}/lab/flipped"), Watching())
    with pytest.raises(IntegrityError, match="not the whole image"):
        image.push(replace(toy, manifest_digest="sha256:other"), image.target(f"{host}/lab/flipped"), Watching())


@pytest.mark.parametrize(
    "text", ["toy", "lab/toy", "registry.lab/Toy", "registry.lab/toy@sha256:1", "https://registry.lab/toy", "host/toy"]
)
def test_places_that_are_none(text: str) -> None:
    with pytest.raises(InvalidSpec, match="is not a place in a registry"):
        image.target(text)
