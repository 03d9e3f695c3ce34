"""Certificates and proxies of a lab reach rattler, tried with a TLS server of a lab's own authority."""

from __future__ import annotations

import functools
import os
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from provision.adapters import conda
from provision.core.errors import Unreachable
from tests.records import make_channel, record

pytestmark = pytest.mark.needs("openssl")

AUTHORITY = "req -x509 -newkey rsa:2048 -nodes -days 2 -keyout ca.key -out ca.pem -subj /CN=Lab"
REQUEST = "req -newkey rsa:2048 -nodes -keyout server.key -out server.csr -subj /CN=localhost"
SIGN = (
    "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -out server.pem "
    "-extfile names"
)
VARIABLES = (
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "PIP_CERT",
    "HTTPS_PROXY",
    "https_proxy",
    "ALL_PROXY",
    "all_proxy",
    "PIP_PROXY",
)


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def channel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A channel on a server whose certificate an authority of its own has signed (ca.pem)."""
    (tmp_path / "names").write_text("subjectAltName=DNS:localhost")
    for command in (AUTHORITY, REQUEST, SIGN):
        subprocess.run(["openssl", *command.split()], cwd=tmp_path, check=True, capture_output=True)
    folder = make_channel(tmp_path / "channel", {"noarch": [record("tool")]})
    handler = functools.partial(QuietHandler, directory=folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RATTLER_CACHE_DIR", str(tmp_path / "rattler"))
    yield f"https://localhost:{server.server_port}/"
    server.shutdown()
    server.server_close()


def solve(channel: str) -> list[str]:
    request = conda.SolveRequest(specs=("tool",), channels=(channel,), virtual_packages=())
    return [package.name for package in conda.Solver().solve(request)]


def test_nobody_else_may_enter_the_cache_of_records(
    channel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock's hashes come from them. rattler has no other place for them than its own."""
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    monkeypatch.delenv("RATTLER_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    before = os.umask(0)
    try:
        assert solve(channel) == ["tool"]
    finally:
        os.umask(before)
    modes = {}
    for path in (tmp_path / "xdg").rglob("*"):
        if path.is_dir():
            modes[path.relative_to(tmp_path).as_posix()] = path.stat().st_mode & 0o777
    assert modes == {"xdg/rattler": 0o755, "xdg/rattler/cache": 0o700}
    assert list((tmp_path / "xdg" / "rattler" / "cache").iterdir())


def test_own_authority_is_not_trusted_by_itself(channel: str) -> None:
    with pytest.raises(Unreachable, match="certificate") as error:
        solve(channel)
    assert "REQUESTS_CA_BUNDLE" in error.value.advice


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT"])
def test_own_authority_of_each_setting_is_trusted(
    channel: str, variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, str(tmp_path / "ca.pem"))
    assert solve(channel) == ["tool"]


def test_folder_of_authorities_is_trusted(
    channel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "authorities"
    folder.mkdir()
    (folder / "lab.pem").write_bytes((tmp_path / "ca.pem").read_bytes())
    subprocess.run(["openssl", "rehash", folder], check=True)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(folder))
    assert solve(channel) == ["tool"]


def test_pips_proxy_is_used(channel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = []

    class Proxy(BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            requests.append(self.path)
            self.send_error(403)

        def log_message(self, *_: object) -> None:
            pass

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    monkeypatch.setenv("PIP_PROXY", f"http://127.0.0.1:{proxy.server_port}")
    with pytest.raises(Unreachable):
        solve(channel)
    proxy.shutdown()
    proxy.server_close()
    assert requests[0] == channel.removeprefix("https://").rstrip("/")
