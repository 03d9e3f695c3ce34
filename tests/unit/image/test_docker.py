"""Engines that disconnect in the middle of an answer; the engine is this test's own."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from provision.adapters import docker as engines
from provision.adapters.docker import Client, connect_engine, engine_errors, stored_login
from provision.core.container import brief_reference
from provision.core.errors import (
    IntegrityError,
    InvalidSpec,
    ProvisionError,
    ToolMissing,
    Unreachable,
)
from provision.image import docker
from tests.programs import write_program
from tests.unit.image.test_image_layers import archive, digest, pieces


class Engine(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        content = b'{"ApiVersion": "1.41"}' if self.path.endswith("/version") else b"OK"
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        progress_line = b'{"stream": "Loading layer"}\r\n'
        self.wfile.write(b"%x\r\n%s\r\n100\r\nhalf of" % (len(progress_line), progress_line))
        self.close_connection = True

    def log_message(self, *message: object) -> None: ...


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{server.server_port}")
    client, reason = connect_engine()
    assert client is not None, reason
    yield client
    client.close()
    server.shutdown()
    server.server_close()


def test_engine_of_the_current_context(
    engine: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The docker command that we print, and run, goes there too."""
    host = os.environ["DOCKER_HOST"]
    monkeypatch.delenv("DOCKER_HOST")
    monkeypatch.delenv("DOCKER_CONTEXT", raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"currentContext": "lab"}))
    context = {"Name": "lab", "Metadata": {}, "Endpoints": {"docker": {"Host": host}}}
    folder = tmp_path / "contexts" / "meta" / hashlib.sha256(b"lab").hexdigest()
    folder.mkdir(parents=True)
    (folder / "meta.json").write_text(json.dumps(context))
    client, reason = connect_engine()
    assert client is not None, reason
    with contextlib.closing(client):
        assert client.api.base_url == host.replace("tcp:", "http:")


def test_contexts_of_the_working_folder_are_not_read(
    engine: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`docker context create` makes no config.json, without which the SDK looks there."""
    context = {"Name": "lab", "Metadata": {}, "Endpoints": {"docker": {"Host": "tcp://n:1"}}}
    folder = tmp_path / "contexts" / "meta" / hashlib.sha256(b"lab").hexdigest()
    folder.mkdir(parents=True)
    (folder / "meta.json").write_text(json.dumps(context))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DOCKER_HOST")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("DOCKER_CONTEXT", "lab")
    client, reason = connect_engine()
    assert client is None and "`docker context use lab` writes" in str(reason)


@pytest.mark.parametrize("meta", ["{", "[]", "{}", '{"Endpoints": {"docker": {}}}', '"x"'])
def test_an_invalid_context_is_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meta: str
) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("DOCKER_CONTEXT", "lab")
    (tmp_path / "config.json").write_text("{}")
    folder = tmp_path / "contexts" / "meta" / hashlib.sha256(b"lab").hexdigest()
    folder.mkdir(parents=True)
    (folder / "meta.json").write_text(meta)
    client, reason = connect_engine()
    assert client is None and "context `lab`) are invalid" in str(reason)


@pytest.mark.parametrize("text", ["[]", '"x"', '{"currentContext": 5}'])
def test_settings_of_another_form_are_a_reason(
    engine: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.delenv("DOCKER_CONTEXT", raising=False)
    (tmp_path / "config.json").write_text(text)
    if "5" in text:
        monkeypatch.delenv("DOCKER_HOST")
    client, reason = connect_engine()
    assert client is None
    assert "are invalid" in str(reason) or "no Docker context `5`" in str(reason)


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("DOCKER_CONTEXT", "nowhere", "no Docker context `nowhere`"),
        ("DOCKER_HOST", "ssh://ann@n01", "needs the Python package paramiko"),
    ],
)
def test_engines_that_the_sdk_would_not_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, reason: str
) -> None:
    """It would take the default engine; it would end in a NameError."""
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(engines, "find_spec", lambda _: None)
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv(variable, value)
    client, problem = connect_engine()
    assert client is None and reason in str(problem)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("{", InvalidSpec, "cannot be read"),
        ("[]", InvalidSpec, "cannot be read"),
        ('{"credsStore": "none"}', ToolMissing, "docker-credential-none"),
        ('{"credHelpers": {"r.lab": "none"}}', ToolMissing, "docker-credential-none"),
        ('{"auths": {"r.lab": {"auth": "dXNlcg=="}}}', InvalidSpec, "cannot be read"),
        ('{"auths": {"r.lab": {"auth": "%"}}}', InvalidSpec, "cannot be read"),
        ('{"credsStore": "junk"}', InvalidSpec, "cannot be read"),
    ],
)
def test_a_login_that_cannot_be_read_is_an_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    error: type[ProvisionError],
    message: str,
) -> None:
    (tmp_path / "config.json").write_text(text)
    write_program(tmp_path / "docker-credential-junk", "#!/bin/sh\necho no JSON\n")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with pytest.raises(error, match=message):
        stored_login("r.lab")


def test_podman_is_one_engine_though_each_request_gets_another_id() -> None:
    """As Podman 4.3.1 replied."""
    numbers = itertools.count()
    podman = SimpleNamespace(
        info=lambda: {"ID": str(next(numbers)), "Name": "vm", "DockerRootDir": "/srv/root"},
        version=lambda: {"Components": [{"Name": "Podman Engine", "Version": "4.3.1"}]},
    )
    assert engines.engine_identity(podman) == engines.engine_identity(podman)


def test_engine_disconnect_during_a_response_is_reported(engine: Client) -> None:
    with (
        pytest.raises(Unreachable, match="could not load the image"),
        engine_errors("load the image"),
    ):
        engine.images.load(b"layers")


CONFIG = f"blobs/sha256/{digest(b'{}')[7:]}"  # an engine before 25 writes HEX.json


def saved(config: str) -> bytes:
    manifest = json.dumps([{"Config": config, "Layers": ["layer.tar"]}]).encode()
    return archive((config, b"{}"), ("manifest.json", manifest), ("layer.tar", bytes(10_000)))


SAVED = saved(CONFIG)


def test_config_digest_of_a_saved_image() -> None:
    for name in (CONFIG, f"{CONFIG[13:]}.json"):
        assert docker.config_digest_in(pieces(saved(name))) == digest(b"{}")
    assert docker.config_digest_in(pieces(saved("config.json"))) is None
    assert docker.config_digest_in(pieces(archive(("manifest.json", b"[]")))) is None


@pytest.mark.parametrize("size", [600, 1560])
def test_truncated_saved_image_is_refused(size: int) -> None:
    """In its config; in its manifest."""
    with pytest.raises(IntegrityError, match="saved cannot be read"):
        docker.config_digest_in(pieces(SAVED[:size]))


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"{",
        b"5",
        b"true",
        b'"x"',
        b"[5]",
        b"[null]",
        b"[{}]",
        b'[{"Config": []}]',
        b'{"a": 1}',
        b"[" * 100_000,
    ],
)
def test_invalid_manifest_of_a_saved_image_is_refused(manifest: bytes) -> None:
    with pytest.raises(IntegrityError, match="saved cannot be read"):
        docker.config_digest_in(pieces(archive(("manifest.json", manifest))))


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        (
            f"docker.io/library/debian:12@sha256:{'96e378d7e653' + 'a' * 52}",
            "debian:12@sha256:96e378d7e653...",
        ),
        ("docker.io/nvidia/cuda:12.1", "nvidia/cuda:12.1"),
        ("registry.lab:5000/base:1", "registry.lab:5000/base:1"),
    ],
)
def test_names_of_images_in_messages_are_brief(reference: str, name: str) -> None:
    assert brief_reference(reference) == name
