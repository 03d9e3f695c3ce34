"""Images to a real registry (Debian's docker-registry) on loopback, also over a line that breaks."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs
from urllib.request import Request, urlopen

import pytest

from provision.adapters.zstd import zstd
from provision.core.errors import IntegrityError, InvalidSpec, ToolFailed, Unreachable
from provision.image import compress, oci_layout
from provision.image import registry as registries
from provision.image.registry import client
from provision.image.registry import push as pushing
from provision_runtime.comm.addresses import free_port
from tests.integration.registries import (
    BIG,
    Line,
    answer,
    host,
    htpasswd,
    log_in,
    make_image,
    push,
    refuse,
    serving,
)
from tests.integration.test_image import Watching

__all__ = ["host"]

pytestmark = pytest.mark.needs("docker-registry")

SKOPEO = [
    "skopeo",
    "copy",
    "--quiet",
    "--insecure-policy",
    "--src-tls-verify=false",
    "--preserve-digests",
]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Small pieces and short pauses; and nobody's real credentials."""
    monkeypatch.setattr(pushing, "UPLOAD_CHUNK", 1 << 20)
    monkeypatch.setattr(client, "PAUSE_S", 0.01)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))


def manifest(host: str, name: str, tag: str) -> bytes:
    request = Request(
        f"http://{host}/v2/{name}/manifests/{tag}", headers={"Accept": oci_layout.MANIFEST}
    )
    with urlopen(request) as answer:
        return bytes(answer.read())


def test_existing_layers_are_not_sent(host: str, tmp_path: Path) -> None:
    first = make_image(tmp_path / "first")
    size = (
        sum(layer.size for layer in first.layers)
        + oci_layout.blob(first.layout, first.image_id).stat().st_size
    )
    pushed = push(first, f"{host}/lab/toy")
    assert (pushed.sent, pushed.present, pushed.tag) == (size, 0, f"{host}/lab/toy:1")
    assert pushed.reference == f"{host}/lab/toy@{first.manifest_digest}"
    assert (
        f"sha256:{hashlib.sha256(manifest(host, 'lab/toy', '1')).hexdigest()}"
        == first.manifest_digest
    )
    assert push(first, f"{host}/lab/toy:again").sent == 0
    second = make_image(tmp_path / "second", small=b"changed")
    assert push(second, f"{host}/lab/toy:2").sent < size / 50


@pytest.mark.needs("skopeo")
def test_skopeo_copies_pushed_images(host: str, tmp_path: Path) -> None:
    toy = make_image(tmp_path / "toy")
    push(toy, f"{host}/lab/copied:x")
    source = f"docker://{host}/lab/copied:x"
    subprocess.run([*SKOPEO, source, f"oci:{tmp_path / 'out'}"], check=True)
    assert (
        json.loads((tmp_path / "out" / "index.json").read_text())["manifests"][0]["digest"]
        == toy.manifest_digest
    )


@pytest.mark.needs("skopeo")
def test_one_file_of_a_layer_is_fetched_alone(host: str, tmp_path: Path) -> None:
    """As Podman does it: the place of the table from the manifest, the file's from the table, by two
    requests for ranges. skopeo reads the layer whole."""
    toy = compress.compress_image(
        make_image(tmp_path / "toy"), "zstd:chunked", tmp_path / "packed", Watching()
    )
    push(toy, f"{host}/lab/chunked:1")
    rows = json.loads(manifest(host, "lab/chunked", "1"))["layers"]

    def fetch(digest: str, start: int, end: int) -> bytes:
        request = Request(
            f"http://{host}/v2/lab/chunked/blobs/{digest}",
            headers={"Range": f"bytes={start}-{end - 1}"},
        )
        with urlopen(request) as answer:
            assert answer.status == 206
            return zstd.decompress(answer.read())

    small = rows[-1]
    position = small["annotations"]["io.github.containers.zstd-chunked.manifest-position"]
    start, length = (int(part) for part in position.split(":")[:2])
    table = json.loads(fetch(small["digest"], start, start + length))
    (row,) = (row for row in table["entries"] if row["name"] == "opt/small")
    assert fetch(small["digest"], row["offset"], row["endOffset"]) == b"small"
    subprocess.run(
        [*SKOPEO, f"docker://{host}/lab/chunked:1", f"oci:{tmp_path / 'out'}"], check=True
    )


def hang_up(line: Line, request: BaseHTTPRequestHandler, body: bytes) -> bool:
    """The second and the fourth piece are lost on the way."""
    if request.command == "PATCH" and line.commands.count("PATCH") in (2, 4):
        request.connection.shutdown(socket.SHUT_RDWR)
        return True
    return False


def busy(line: Line, request: BaseHTTPRequestHandler, body: bytes) -> bool:
    """Every kind of request is told to come again, once."""
    first = line.commands.count(request.command) == 1
    return first and refuse(
        request, 429 if request.command in ("POST", "HEAD") else 503, Retry_After="0"
    )


def forgotten(line: Line, request: BaseHTTPRequestHandler, body: bytes) -> bool:
    """The upload is gone after its second piece: the registry was restarted."""
    return (
        line.commands.count("PATCH") == 2
        and request.command in ("PATCH", "GET")
        and refuse(request, 404)
    )


def unanswered(line: Line, request: BaseHTTPRequestHandler, body: bytes) -> bool:
    """What ends the first upload arrives, and its answer does not."""
    if request.command == "PUT" and line.commands.count("PUT") == 1:
        with urlopen(
            Request(f"http://{line.behind}{request.path}", data=b"", method="PUT")
        ) as finished:
            assert finished.status == 201
        request.connection.shutdown(socket.SHUT_RDWR)
        return True
    return False


def forgotten_at_last(line: Line, request: BaseHTTPRequestHandler, body: bytes) -> bool:
    return request.command == "PUT" and line.commands.count("PUT") == 1 and refuse(request, 404)


@pytest.mark.parametrize("trouble", [hang_up, busy, forgotten, unanswered, forgotten_at_last])
def test_interrupted_upload_begins_again(
    host: str, tmp_path: Path, trouble: Callable[..., bool]
) -> None:
    toy = make_image(tmp_path / "toy")
    line = Line(host, trouble)
    progress = Watching()
    name = f"lab/{trouble.__name__.replace('_', '-')}"
    with line.open() as registry:
        pushed = registries.push_image(
            toy, registries.parse_registry_reference(f"{registry}/{name}:1"), progress
        )
    assert f"sha256:{hashlib.sha256(manifest(host, name, '1')).hexdigest()}" == toy.manifest_digest
    assert pushed.sent == progress.advanced == sum(progress.meters.values())
    if trouble is unanswered:
        assert line.commands.count("PATCH") == 6
    if (
        trouble is hang_up
    ):  # twice two pieces of a layer of four, then all; another layer, the config
        assert line.commands.count("PATCH") == 10


def test_unreachable_registry_is_named(host: str, tmp_path: Path) -> None:
    toy = make_image(tmp_path / "toy")
    with pytest.raises(Unreachable, match="refuses connections"):
        push(toy, f"127.0.0.1:{free_port()}/lab/toy")
    with (
        Line(host, lambda line, request, body: refuse(request, 500)).open() as registry,
        pytest.raises(ToolFailed, match="status 500"),
    ):
        push(toy, f"{registry}/lab/toy")


def test_docker_login_user_is_required(tmp_path: Path) -> None:
    toy = make_image(tmp_path / "toy")
    (tmp_path / "users").write_text(htpasswd("lab", "secret"))
    with serving(
        tmp_path / "registry", f"auth: {{htpasswd: {{realm: lab, path: {tmp_path / 'users'}}}}}"
    ) as host:
        place = registries.parse_registry_reference(f"{host}/lab/toy")
        with pytest.raises(ToolFailed, match="none is stored"):
            registries.push_image(toy, place, Watching())
        log_in(host, "lab", "wrong")
        with pytest.raises(ToolFailed, match="stored password of lab"):
            registries.push_image(toy, place, Watching())
        log_in(host, "lab", "secret")
        assert registries.push_image(toy, place, Watching()).sent > BIG


def test_token_is_fetched_from_the_announced_realm(host: str, tmp_path: Path) -> None:
    """As hosted registries have it: 401 names a place that gives a token to who is known; it may be busy."""
    toy = make_image(tmp_path / "toy")
    token_requests: list[str] = []
    late = formatdate(time.time() + 1, usegmt=True)

    def guarded(line: Line, request: BaseHTTPRequestHandler, body: bytes) -> bool:
        own = f"127.0.0.1:{request.server.server_port}"  # type: ignore[attr-defined]
        if request.path.startswith("/token"):
            token_requests.append(f"{request.path} {request.headers.get('Authorization', '')}")
            return (
                refuse(request, 503, Retry_After=late)
                if len(token_requests) == 1
                else answer(request, json.dumps({"token": "opensesame"}).encode())
            )
        if request.headers.get("Authorization") == "Bearer opensesame":
            del request.headers["Authorization"]
            return False
        challenge = f'Bearer realm="http://{own}/token",service="lab",scope="repository:lab/token:pull,push"'
        return refuse(request, 401, WWW_Authenticate=challenge)

    with Line(host, guarded).open() as registry:
        log_in(registry, "lab", "secret")
        assert push(toy, f"{registry}/lab/token").sent > BIG
    secret = base64.b64encode(b"lab:secret").decode()
    assert (
        token_requests
        == [f"/token?service=lab&scope=repository%3Alab%2Ftoken%3Apull%2Cpush Basic {secret}"] * 2
    )


def test_identity_token_is_exchanged(host: str, tmp_path: Path) -> None:
    """What `docker login` keeps where the token server gives it such (OAuth2): there is no password to send."""
    toy = make_image(tmp_path / "toy")
    token_requests: list[dict[str, list[str]]] = []

    def guarded(line: Line, request: BaseHTTPRequestHandler, body: bytes) -> bool:
        if request.path == "/token" and request.command == "POST":
            token_requests.append(parse_qs(body.decode()))
            return answer(request, json.dumps({"access_token": "opensesame"}).encode())
        if request.headers.get("Authorization") == "Bearer opensesame":
            del request.headers["Authorization"]
            return False
        own = f"127.0.0.1:{request.server.server_port}"  # type: ignore[attr-defined]
        return refuse(
            request, 401, WWW_Authenticate=f'Bearer realm="http://{own}/token",service="lab"'
        )

    with Line(host, guarded).open() as registry:
        folder = Path(os.environ["DOCKER_CONFIG"])
        folder.mkdir()
        (folder / "config.json").write_text(
            json.dumps({"auths": {registry: {"auth": "", "identitytoken": "kept"}}})
        )
        assert push(toy, f"{registry}/lab/identity").sent > BIG
    scope = "repository:lab/identity:pull,push"
    form = {
        "grant_type": "refresh_token",
        "refresh_token": "kept",
        "client_id": "provision",
        "service": "lab",
        "scope": scope,
    }
    assert token_requests == [{key: [value] for key, value in form.items()}]


def test_upload_without_a_location_names_the_registry(host: str, tmp_path: Path) -> None:
    toy = make_image(tmp_path / "toy")
    without_location = Line(
        host, lambda line, request, body: request.command == "POST" and refuse(request, 202)
    )
    with without_location.open() as registry, pytest.raises(ToolFailed, match="continue an upload"):
        push(toy, f"{registry}/lab/nowhere")


def test_missing_or_changed_layer_is_not_pushed(host: str, tmp_path: Path) -> None:
    toy = make_image(tmp_path / "toy")
    blob = oci_layout.blob(toy.layout, toy.layers[0].digest)
    content = bytearray(blob.read_bytes())
    content[5000] ^= 1
    blob.write_bytes(content)
    with pytest.raises(IntegrityError, match=f"{blob.name} is corrupt"):
        push(toy, f"{host}/lab/flipped")
    assert not blob.exists()
    blob.write_bytes(content[:-1])
    with pytest.raises(IntegrityError, match="no longer the complete image"):
        push(toy, f"{host}/lab/flipped")
    with pytest.raises(IntegrityError, match="no longer the complete image"):
        registries.push_image(
            replace(toy, manifest_digest="sha256:other"),
            registries.parse_registry_reference(f"{host}/lab/flipped"),
            Watching(),
        )


def test_upload_that_always_breaks_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first piece is taken, the next is not."""
    monkeypatch.setattr(client, "PAUSE_S", 0)
    monkeypatch.setattr(pushing, "UPLOAD_CHUNK", 100)

    def breaking(line: Line, request: BaseHTTPRequestHandler, body: bytes) -> bool:
        if request.command == "HEAD":
            return refuse(request, 404)
        is_accepted = request.command == "POST" or request.headers["Content-Range"].startswith("0-")
        return refuse(request, 202 if is_accepted else 500, Location="/v2/lab/toy/blobs/uploads/1")

    line = Line("", breaking)
    progress = Watching()
    with (
        line.open() as registry,
        pytest.raises(Unreachable, match=f"did not take .*, {client.TRIES} times"),
    ):
        place = registries.parse_registry_reference(f"{registry}/lab/toy")
        registries.push_image(make_image(tmp_path / "toy"), place, progress)
    assert line.commands.count("PATCH") == 2 * client.TRIES
    assert line.commands.count("POST") == client.TRIES
    assert progress.advanced == 0


@pytest.mark.parametrize(
    "text",
    [
        "toy",
        "lab/toy",
        "registry.lab/Toy",
        "registry.lab/toy@sha256:1",
        "https://registry.lab/toy",
        "host/toy",
    ],
)
def test_invalid_outputs(text: str) -> None:
    with pytest.raises(InvalidSpec, match="is not a reference to a registry"):
        registries.parse_registry_reference(text)
