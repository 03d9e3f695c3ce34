"""Downloads from a server on loopback that misbehaves in every way a mirror can."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from provision.adapters import http
from provision.adapters.http import HttpClient
from provision.adapters.http.retry import TRIES
from provision.adapters.http.session import open_session
from provision.core.errors import IntegrityError, ProvisionError, SystemRefused, Unreachable
from tests.faulty import Fault, Server, served

CONTENT = os.urandom(300_000)
SHA = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(http.TIMEOUT_VARIABLE, "0.3")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a b+c.whl").write_bytes(CONTENT)
    with served(tmp_path / "files") as running:
        yield running


@dataclass(frozen=True)
class Download:
    url: str
    sha256: str
    target: Path


def download_of(server: Server, tmp_path: Path, sha256: str = SHA) -> Download:
    return Download(
        url=f"{server.url}/a%20b%2Bc.whl", sha256=sha256, target=tmp_path / "got" / "a.whl"
    )


def download(request: Download) -> list[ProvisionError]:
    try:
        with HttpClient() as web:
            web.download(request.url, request.sha256, request.target)
    except (Unreachable, IntegrityError) as error:
        return [error]
    return []


def leftovers(request: Download) -> list[str]:
    return sorted(path.name for path in request.target.parent.iterdir())


def test_file_is_downloaded_completely(server: Server, tmp_path: Path) -> None:
    download_request = download_of(server, tmp_path)
    assert download(download_request) == []
    assert download_request.target.read_bytes() == CONTENT
    assert leftovers(download_request) == ["a.whl"]


@pytest.mark.parametrize("kind", [503, 429, "truncate", "stall", "drop"])
@pytest.mark.parametrize("ranges", [True, False], ids=["ranges", "no-ranges"])
def test_temporary_faults_are_retried(
    server: Server, tmp_path: Path, kind: Fault, ranges: bool
) -> None:
    server.fault("a", kind, times=2)
    if not ranges:
        server.fault("a", "no-range")
    download_request = download_of(server, tmp_path)
    assert download(download_request) == []
    assert download_request.target.read_bytes() == CONTENT
    assert leftovers(download_request) == ["a.whl"]


def test_slow_server_is_waited_for(server: Server, tmp_path: Path) -> None:
    server.fault("a", "slow")
    assert download(download_of(server, tmp_path)) == []


@pytest.mark.parametrize(
    "kind,error,message,requests",
    [
        (404, Unreachable, "is gone: the server answers HTTP 404", 1),
        (403, Unreachable, "could not be fetched: the server answers HTTP 403", 1),
        (500, Unreachable, "could not be fetched: HTTP 500", 4),
        ("drop", Unreachable, "could not be fetched", 4),
        ("stall", Unreachable, "silent for too long", None),
        ("trickle", Unreachable, "bytes came within", None),
        ("wrong", IntegrityError, "is not the file that the lock names", 1),
    ],
)
def test_lasting_faults_are_reported(
    server: Server,
    tmp_path: Path,
    kind: Fault,
    error: type[ProvisionError],
    message: str,
    requests: int | None,
) -> None:
    server.fault("a", kind)
    download_request = download_of(server, tmp_path)
    (refusal,) = download(download_request)
    assert isinstance(refusal, error) and message in refusal.message and "a%20b" in refusal.message
    assert not download_request.target.exists()
    assert requests is None or len(server.log) == requests


def test_always_truncated_download_gives_up(server: Server, tmp_path: Path) -> None:
    server.fault("a", "truncate")
    (refusal,) = download(download_of(server, tmp_path))
    assert isinstance(refusal, Unreachable)
    assert len(server.log) == TRIES


@pytest.mark.parametrize("part", [b"x" * 1000, b"x" * 300_000, b"x" * 400_000])
def test_rest_of_an_earlier_download_is_discarded(
    server: Server, tmp_path: Path, part: bytes
) -> None:
    download_request = download_of(server, tmp_path)
    download_request.target.parent.mkdir()
    http.partial_path(download_request.target).write_bytes(part)
    assert download(download_request) == []
    assert download_request.target.read_bytes() == CONTENT
    assert leftovers(download_request) == ["a.whl"]


def test_local_file(tmp_path: Path) -> None:
    source = tmp_path / "a b.whl"
    source.write_bytes(CONTENT)
    download_request = Download(url=source.as_uri(), sha256=SHA, target=tmp_path / "got" / "a.whl")
    assert download(download_request) == []
    assert download_request.target.read_bytes() == CONTENT
    (wrong,) = download(
        Download(url=source.as_uri(), sha256="0" * 64, target=tmp_path / "got" / "b.whl")
    )
    assert isinstance(wrong, IntegrityError)
    (absent,) = download(
        Download(url=(tmp_path / "none").as_uri(), sha256=SHA, target=tmp_path / "got" / "c.whl")
    )
    assert isinstance(absent, Unreachable)
    assert leftovers(download_request) == ["a.whl"]


def test_disk_error_is_not_blamed_on_the_mirror(server: Server, tmp_path: Path) -> None:
    (tmp_path / "got").write_text("a file, where a folder is needed")
    with pytest.raises(SystemRefused, match="got"):
        download(download_of(server, tmp_path))


def test_unreachable_server(tmp_path: Path) -> None:
    for url, reason in (
        ("http://127.0.0.1:9/x", "Connection refused"),
        ("http://no-such-host.invalid/x", "could not be fetched"),
    ):
        with HttpClient() as web, pytest.raises(Unreachable, match=reason):
            web.content(url)


def test_small_files_of_servers_and_disks(server: Server, tmp_path: Path) -> None:
    (tmp_path / "files" / "text").write_text("hällo")
    with HttpClient() as web:
        for url in (f"{server.url}/text", (tmp_path / "files" / "text").as_uri()):
            assert web.content(url).decode() == "hällo"
        for url in (f"{server.url}/none", (tmp_path / "none").as_uri()):
            with pytest.raises(Unreachable):
                web.content(url)


def test_pip_certificate_and_proxy_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "SSL_CERT_FILE",
        "HTTPS_PROXY",
        "https_proxy",
        "ALL_PROXY",
        "all_proxy",
    ):
        monkeypatch.delenv(name, raising=False)
    session = open_session(
        {
            "proxy": "http://proxy.invalid:3128",
            "cert": "/some/ca.pem",
            "client-cert": "/some/me.pem",
        }
    )
    assert (session.verify, session.cert) == ("/some/ca.pem", "/some/me.pem")
    assert session.proxies["https"] == "http://proxy.invalid:3128"
    monkeypatch.setenv("HTTPS_PROXY", "http://other.invalid")
    assert not open_session({"proxy": "http://proxy.invalid:3128"}).proxies


def test_a_text_that_is_too_large_is_refused(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{server.url}/a%20b%2Bc.whl"
    with HttpClient() as web:
        monkeypatch.setattr("provision.adapters.http.client.TEXT_LIMIT", len(CONTENT))
        assert web.content(url) == CONTENT
        monkeypatch.setattr("provision.adapters.http.client.TEXT_LIMIT", len(CONTENT) - 1)
        with pytest.raises(Unreachable, match="is too large for a text file"):
            web.content(url)
