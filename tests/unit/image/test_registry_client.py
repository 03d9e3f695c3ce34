"""Who gets our password: our registry and its token server, nobody else. The servers are this test's, on loopback."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from provision.adapters.http import session as http_session
from provision.core.errors import IntegrityError, InvalidSpec, ToolFailed, Unreachable
from provision.image.registry import client, push
from provision.image.registry.client import RegistryClient
from provision.image.registry.reference import parse_registry_reference
from provision_runtime.comm.addresses import free_port

Reply = tuple[int, dict[str, str]]


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[str], Reply]], tuple[str, list[str | None]]]]:
    """Starts a server; its address, and the Authorization of each request that it got."""
    servers = []

    def start(reply: Callable[[str], Reply]) -> tuple[str, list[str | None]]:
        bucket_log: list[str | None] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                bucket_log.append(self.headers.get("Authorization"))
                status, headers = reply(self.path)
                self.send_response(status)
                for name, value in {**headers, "Content-Length": "0"}.items():
                    self.send_header(name, value)
                self.end_headers()

            do_PUT = do_GET

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"127.0.0.1:{server.server_port}", bucket_log

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_redirect_targets_get_no_password(
    serve: Callable[[Callable[[str], Reply]], tuple[str, list[str | None]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bucket, bucket_log = serve(
        lambda path: (401, {"WWW-Authenticate": f'Bearer realm="http://{bucket}/token"'})
    )
    registry, _ = serve(lambda path: (307, {"Location": f"http://{bucket}/blob"}))
    login = base64.b64encode(b"alice:secret").decode()
    (tmp_path / "config.json").write_text(json.dumps({"auths": {registry: {"auth": login}}}))
    (tmp_path / ".netrc").write_text("default login other password other\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    with (
        RegistryClient(parse_registry_reference(f"{registry}/a/b:1")) as connection,
        pytest.raises(ToolFailed, match="401"),
    ):
        connection.request("GET", f"blobs/sha256:{'0' * 64}", expected=(200,))
    assert bucket_log == [None]


def test_no_proxy_is_used_for_this_machine(
    serve: Callable[[Callable[[str], Reply]], tuple[str, list[str | None]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proxy, bucket_log = serve(lambda path: (404, {}))
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(variable, f"http://{proxy}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    registry, requests_seen = serve(lambda path: (200, {}))
    with RegistryClient(parse_registry_reference(f"{registry}/a/b:1")) as connection:
        connection.request("GET", "manifests/1", expected=(200,))
    assert (bucket_log, requests_seen) == ([], [None])


@pytest.mark.parametrize("place", ["bucket.invalid", "loopback"])
def test_each_redirect_target_has_its_own_proxy(
    serve: Callable[[Callable[[str], Reply]], tuple[str, list[str | None]]],
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    """As the environment has it for that host, and none for this machine, whatever held for the registry."""
    proxied: list[str] = []

    def forward(path: str) -> Reply:
        proxied.append(path)
        return 200, {}

    proxy, _ = serve(forward)
    bucket, bucket_log = serve(lambda path: (200, {}))
    location = f"http://{bucket if place == 'loopback' else place}/blob"
    registry, requests_seen = serve(lambda path: (307, {"Location": location}))
    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("http_proxy", f"http://{proxy}")
    with RegistryClient(parse_registry_reference(f"{registry}/a/b:1")) as connection:
        connection.request("GET", f"blobs/sha256:{'0' * 64}", expected=(200,))
    assert requests_seen == [None]
    assert (proxied, bucket_log) == (([], [None]) if place == "loopback" else ([location], []))


@pytest.mark.parametrize(
    "signed", ["X-Amz-Signature=secret", "sv=1&sig=secret", "name='a%20b'&to=(c)&sig=secret"]
)
def test_errors_of_redirect_targets_hide_signatures(
    serve: Callable[[Callable[[str], Reply]], tuple[str, list[str | None]]],
    monkeypatch: pytest.MonkeyPatch,
    signed: str,
) -> None:
    monkeypatch.setattr(client, "PAUSE_S", 0)
    bucket = f"127.0.0.1:{free_port()}"
    registry, requests_seen = serve(
        lambda path: (307, {"Location": f"http://{bucket}/blob?{signed}"})
    )
    message = f"^{bucket}, to which the registry {registry} redirects, does not respond"
    with (
        RegistryClient(parse_registry_reference(f"{registry}/a/b:1")) as connection,
        pytest.raises(Unreachable, match=message) as caught,
    ):
        connection.request("GET", f"blobs/sha256:{'0' * 64}", expected=(200,))
    details = caught.value.details or ""
    assert "/blob" in details
    assert not [secret for secret in ("secret", "sig", "X-Amz", "name") if secret in details]
    assert requests_seen == [None]


def test_registry_names_ignore_case() -> None:
    assert str(parse_registry_reference("Registry.Lab:5000/ml/x:1")) == "registry.lab:5000/ml/x:1"


def test_deeply_nested_errors_are_shown_as_text() -> None:
    deep = client.RegistryResponse(status=403, url="", headers={}, content=b"[" * 200_000)
    assert "[[[[" in (
        client.refusal_error(parse_registry_reference("lab:5000/a:1"), "look", deep).details or ""
    )


@pytest.fixture
def registry_with_own_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, Path]]:
    """A registry over TLS and the certificate of the authority that signed its own. Its name leads
    to loopback."""
    request = "req -x509 -newkey rsa:2048 -nodes -days 2 -keyout key.pem -out cert.pem"
    names = "-subj /CN=registry.test -addext subjectAltName=DNS:registry.test"
    subprocess.run(
        ["openssl", *request.split(), *names.split()],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    lookup = socket.getaddrinfo

    def to_loopback(host: str, *arguments: object, **options: object) -> object:
        return lookup("127.0.0.1" if host == "registry.test" else host, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", to_loopback)
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(http_session, "DOCKER_CERTIFICATES", tmp_path / "certs.d")
    yield f"registry.test:{server.server_port}", tmp_path / "cert.pem"
    server.shutdown()
    server.server_close()


def ask(registry: str) -> int:
    reference = parse_registry_reference(f"{registry}/lab/torch:1")
    with RegistryClient(reference) as connection:
        return connection.request("GET", "manifests/1", expected=(200,)).status


@pytest.mark.needs("openssl")
def test_certificate_of_an_unknown_authority_is_named(
    registry_with_own_authority: tuple[str, Path],
) -> None:
    registry, _ = registry_with_own_authority
    with pytest.raises(
        Unreachable, match=r"certificate of the registry .* is not trusted"
    ) as error:
        ask(registry)
    assert f"/etc/docker/certs.d/{registry}/ca.crt" in error.value.advice


@pytest.mark.needs("openssl")
def test_a_registry_on_loopback_is_asked_by_tls_first(
    registry_with_own_authority: tuple[str, Path],
) -> None:
    registry, _ = registry_with_own_authority
    with pytest.raises(Unreachable, match=r"certificate of the registry 127\.0\.0\.1:"):
        ask(registry.replace("registry.test", "127.0.0.1"))


BASIC = {"WWW-Authenticate": 'Basic realm="lab"'}


@pytest.mark.parametrize(
    ("config", "status", "message"),
    [
        ({}, 401, "wants a password, and none is stored"),
        ({"auth": base64.b64encode(b"ann:x").decode()}, 401, "the stored password of ann"),
        ({"identitytoken": "x"}, 401, "does not accept the stored token"),
        ({"auth": base64.b64encode(b"ann:x").decode()}, 403, "this user may not do that"),
    ],
)
def test_refusals_say_whether_a_password_is_stored(
    serve: Callable[[Callable[[str], Reply]], tuple[str, list[str | None]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    config: dict[str, str],
    status: int,
    message: str,
) -> None:
    registry, _ = serve(lambda path: (status, BASIC))
    (tmp_path / "config.json").write_text(json.dumps({"auths": {registry: config}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with pytest.raises(ToolFailed, match=message):
        ask(f"{registry}")


@pytest.mark.parametrize(
    ("registry", "message"),
    [("127.0.0.1:1", "refuses connections"), ("nowhere.invalid", "cannot resolve")],
)
def test_no_connection_says_why(
    monkeypatch: pytest.MonkeyPatch, registry: str, message: str
) -> None:
    monkeypatch.setattr(client, "TRIES", 1)
    with pytest.raises(Unreachable, match=message):
        ask(registry)


@pytest.mark.needs("openssl")
def test_certificates_of_docker_and_of_the_environment_are_trusted(
    registry_with_own_authority: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, certificate = registry_with_own_authority
    folder = http_session.DOCKER_CERTIFICATES / registry
    folder.mkdir(parents=True)
    (folder / "ca.crt").write_bytes(certificate.read_bytes())
    assert ask(registry) == 200
    (folder / "ca.crt").write_text("no certificate")
    with pytest.raises(
        InvalidSpec, match=f"certificate for the registry {registry} cannot be read"
    ):
        ask(registry)
    (folder / "ca.crt").unlink()
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert ask(registry) == 200


def test_a_registry_that_stores_other_bytes_is_refused(
    serve: Callable[[Callable[[str], Reply]], tuple[str, list[str | None]]],
) -> None:
    stored = f"sha256:{9:064}"
    registry, _ = serve(lambda path: (201, {"Docker-Content-Digest": stored}))
    reference = parse_registry_reference(f"{registry}/a/b:1")
    with (
        RegistryClient(reference) as connection,
        pytest.raises(IntegrityError, match=rf"has {stored} now, not sha256:0+1\."),
    ):
        push.put_manifest(connection, "1", f"sha256:{1:064}", b"")
