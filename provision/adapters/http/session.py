"""Sessions of requests: which proxy, certificates and credentials they use."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from provision.core.errors import InvalidSpec

if TYPE_CHECKING:
    import ssl

    import requests
    from urllib3.util import Retry

# Where Docker looks for a registry's own certificates (docs.docker.com/engine/security/certificates).
DOCKER_CERTIFICATES = Path("/etc/docker/certs.d")
CONNECTIONS = 8  # more make one mirror slower, not faster
PROXY_VARIABLES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
# What rustls, in rattler and uv, says of a certificate whose authority it does not know.
UNTRUSTED = "invalid peer certificate"
UNTRUSTED_ADVICE = (
    "Name the file with your authority's certificate in SSL_CERT_FILE, REQUESTS_CA_BUNDLE or pip's "
    "`cert`."
)
LOOPBACK_TIMEOUT_S = 5.0
TLS_RECORDS = (b"\x15", b"\x16")  # an alert, a handshake
_LOOPBACK = re.compile(r"(localhost|127\.\d+\.\d+\.\d+|\[::1\])(:\d+)?")


def is_loopback(host: str) -> bool:
    """Whether host[:port] names this machine."""
    return _LOOPBACK.fullmatch(host) is not None


@cache
def speaks_tls(host: str) -> bool:
    """Whether a server of this machine, as host[:port], answers a TLS client. No connection is set up;
    each request checks the certificate."""
    import ssl

    context, outgoing = ssl.create_default_context(), ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    parts = urlsplit(f"//{host}")
    try:
        address = (parts.hostname or host, parts.port or 443)
        with socket.create_connection(address, LOOPBACK_TIMEOUT_S) as connection:
            # A server without TLS waits for the end of a line.
            connection.sendall(outgoing.read() + b"\r\n\r\n")
            return connection.recv(1) in TLS_RECORDS
    except OSError:
        return False


def open_session(pip_settings: Mapping[str, str]) -> requests.Session:
    """A session for indexes and channels, which threads may share.

    pip_settings: pip's `proxy`, `cert` and `client-cert`, used where the environment sets none.
    """
    import requests
    from requests.adapters import HTTPAdapter

    session = requests.Session()
    session.headers["User-Agent"] = "provision"
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(pool_connections=CONNECTIONS, pool_maxsize=CONNECTIONS))
    bundle = pip_settings.get("cert") or os.environ.get("SSL_CERT_FILE")
    if bundle and not os.environ.get("REQUESTS_CA_BUNDLE"):
        session.verify = bundle
    if pip_settings.get("client-cert"):
        session.cert = pip_settings["client-cert"]
    proxy = pip_settings.get("proxy")
    if proxy and not any(os.environ.get(name) for name in PROXY_VARIABLES):
        session.proxies = {"http": proxy, "https": proxy}
    return session


def connection_variables(
    pip_settings: Mapping[str, str], environment: Mapping[str, str]
) -> dict[str, str]:
    """pip's certificates and proxy, and those of requests, under the names that uv and rattler
    read; without what the environment has under these names.

    pip_settings: pip's `proxy`, `cert` and `client-cert`.
    """
    variables = {}
    bundle = environment.get("REQUESTS_CA_BUNDLE") or pip_settings.get("cert")
    if bundle and not environment.get("SSL_CERT_FILE") and not environment.get("SSL_CERT_DIR"):
        name = "SSL_CERT_DIR" if Path(bundle).is_dir() else "SSL_CERT_FILE"
        variables[name] = bundle
    if pip_settings.get("client-cert") and not environment.get("SSL_CLIENT_CERT"):
        variables["SSL_CLIENT_CERT"] = pip_settings["client-cert"]
    proxy = pip_settings.get("proxy")
    if proxy and not any(environment.get(name) for name in PROXY_VARIABLES):
        variables["ALL_PROXY"] = proxy
    return variables


def certificate_files(registry: str) -> tuple[Path, ...]:
    """The certificates of authorities that are trusted for a registry besides the system's:
    Docker's for that registry, and those of SSL_CERT_FILE and REQUESTS_CA_BUNDLE."""
    files = sorted((DOCKER_CERTIFICATES / registry).glob("*.crt"))
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        value = os.environ.get(name)
        if value and Path(value).is_file():
            files.append(Path(value))
    return tuple(files)


def _registry_context(registry: str) -> ssl.SSLContext:
    import ssl

    context = ssl.create_default_context()
    for file in certificate_files(registry):
        context.load_verify_locations(file)
    # Docker's names: client.cert with client.key.
    for certificate in sorted((DOCKER_CERTIFICATES / registry).glob("*.cert")):
        context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    return context


def open_registry_session(registry: str, retries: Retry) -> requests.Session:
    """A session that sends credentials to no host but the one they are for, and takes none from
    ~/.netrc.

    registry: host[:port], whose certificates in /etc/docker/certs.d are honored. Raises InvalidSpec
    if one of them cannot be read.
    """
    import requests
    from requests.adapters import HTTPAdapter

    class Session(requests.Session):
        def merge_environment_settings(self, url: Any, proxies: Any, *more: Any) -> Any:
            return super().merge_environment_settings(
                url, {**_no_proxy_for_loopback(url), **(proxies or {})}, *more
            )

        def rebuild_proxies(self, prepared_request: Any, proxies: Any) -> Any:
            """Judge each host to which a redirect leads by itself, not by the host before."""
            return super().rebuild_proxies(  # type: ignore[no-untyped-call]
                prepared_request, _no_proxy_for_loopback(prepared_request.url)
            )

        def rebuild_auth(self, prepared_request: Any, response: Any) -> None:
            old_url, new_url = response.request.url, prepared_request.url
            if self.should_strip_auth(old_url, new_url):  # type: ignore[no-untyped-call]
                prepared_request.headers.pop("Authorization", None)

    class Adapter(HTTPAdapter):
        def __init__(self, context: ssl.SSLContext) -> None:
            self._context = context
            super().__init__(max_retries=retries)

        def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
            super().init_poolmanager(*arguments, **options, ssl_context=self._context)

        def proxy_manager_for(self, *arguments: Any, **options: Any) -> Any:
            return super().proxy_manager_for(*arguments, **options, ssl_context=self._context)

    session = Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(max_retries=retries))
    if certificate_files(registry) or (DOCKER_CERTIFICATES / registry).is_dir():
        try:
            session.mount(f"https://{registry}/", Adapter(_registry_context(registry)))
        except OSError as error:  # ssl.SSLError is one
            raise InvalidSpec(
                f"A certificate for the registry {registry} cannot be read: {error}.",
                advice=f"Check {DOCKER_CERTIFICATES / registry}, SSL_CERT_FILE and "
                "REQUESTS_CA_BUNDLE.",
            ) from error
    return session


def _no_proxy_for_loopback(url: str) -> dict[str, str]:
    """No proxy for this machine, as with Go's clients; for other hosts the environment decides."""
    return {"http": "", "https": ""} if is_loopback(urlsplit(url).netloc) else {}
