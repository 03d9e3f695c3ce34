"""Requests to one repository of a registry: login, retries, and what error a refusal becomes.

Sources of the login: distribution's "Token Authentication Specification" and "OAuth2 Token
Authentication".
"""

from __future__ import annotations

import base64
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from provision.adapters.docker import Login, stored_login
from provision.adapters.http import Backoff
from provision.adapters.http.session import certificate_files, open_registry_session
from provision.core.dataclass import frozen
from provision.core.errors import (
    IntegrityError,
    ProvisionError,
    TimedOut,
    ToolFailed,
    ToolMissing,
    Unreachable,
)
from provision.core.json_text import parse_json
from provision.core.tar import CHUNK
from provision.image.manifest import DOCUMENT_LIMIT, check_digest
from provision.image.oci_layout import DIGEST
from provision.image.registry.reference import RegistryReference

if TYPE_CHECKING:
    from urllib3.util import Retry

TIMEOUT_S = (10.0, 120.0)  # to connect; between two signs of life
TRIES = 5
CONTENT_LIMIT = 64 << 20  # of a document that is kept as a blob
PAUSE_S = 0.5
MAX_PAUSE_S = 30.0
TOO_MANY_REQUESTS = 429
RETRY_STATUSES = (TOO_MANY_REQUESTS, 500, 502, 503, 504)
# Not PATCH: a registry may have stored part of an upload's chunk before the connection broke.
RETRY_METHODS = ("HEAD", "GET", "PUT", "POST")


@frozen
class RegistryResponse:
    """A response, read completely."""

    status: int
    url: str
    headers: Mapping[str, str]
    content: bytes


class ConnectionFailed(Exception):
    """The connection broke, or could not be made. host: the registry, or where it redirected to."""

    def __init__(self, message: str, host: str = "") -> None:
        super().__init__(message)
        self.host = host


class RegistryClient:
    """Requests to one repository. Keeps connections and the login for later requests."""

    def __init__(self, reference: RegistryReference) -> None:
        self.reference = reference
        self._session = open_registry_session(reference.registry, _retries())
        self._authorization: str | None = None

    def __enter__(self) -> RegistryClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self._session.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        expected: tuple[int, ...],
        limit: int = DOCUMENT_LIMIT,
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
    ) -> RegistryResponse:
        """A response with one of the `expected` statuses.

        Unreachable if there is no response, IntegrityError for one of more than `limit` bytes;
        other refusals as in `refusal_error`.
        """
        try:
            with self.stream(method, path, headers=headers, data=data) as stream:
                response = read_response(self.reference, stream, limit)
        except ConnectionFailed as failure:
            raise unreachable_error(self.reference, failure) from failure
        if response.status not in expected:
            raise refusal_error(self.reference, f"{method} {path.partition('?')[0]}", response)
        return response

    def manifest(
        self, tag_or_digest: str, accept: str, expected: tuple[int, ...] = (200,)
    ) -> RegistryResponse:
        """A manifest or index. IntegrityError if it does not match its digest."""
        path = f"manifests/{tag_or_digest}"
        response = self.request("GET", path, expected=expected, headers={"Accept": accept})
        digest = response.headers.get("Docker-Content-Digest")
        if DIGEST.fullmatch(tag_or_digest):
            digest = tag_or_digest
        if digest and response.status == 200:
            check_digest(str(self.reference), digest, response.content)
        return response

    def blob(self, digest: str) -> bytes:
        """A document. IntegrityError if it does not match its digest."""
        path = f"blobs/{digest}"
        content = self.request("GET", path, expected=(200,), limit=CONTENT_LIMIT).content
        check_digest(str(self.reference), digest, content)
        return content

    @contextmanager
    def stream(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
    ) -> Iterator[Any]:
        """A response whose content is not read yet. Logs in first if the registry requires it, and
        tries again while it is busy. Raises ConnectionFailed, also within the block."""
        import requests
        from urllib3.exceptions import HTTPError

        url = urljoin(self.reference.api_url, path)
        try:
            response = self._send(method, url, headers, data)
            # A 401 of another host, to which we were redirected, would ask for our password there.
            if response.status_code == 401 and self._is_registry(response.url):
                with response:
                    challenge = read_response(self.reference, response)
                self._authorization = _authorization(self._session, self.reference, challenge)
                response = self._send(method, url, headers, data)
            with response:
                yield response
        except (requests.RequestException, HTTPError, ConnectionError) as error:
            failed_url = getattr(getattr(error, "request", None), "url", None) or url
            # Signed URLs of buckets give access to anyone who reads them.
            message = re.sub(r"\?\S+", "?...", str(error))
            if isinstance(error, requests.exceptions.SSLError):
                raise tls_error(self.reference, message) from error
            raise ConnectionFailed(message, urlsplit(failed_url).netloc) from error

    def _send(
        self, method: str, url: str, headers: Mapping[str, str] | None, data: bytes | None
    ) -> Any:
        authorization = self._authorization if self._is_registry(url) else None
        return self._session.request(
            method,
            url,
            # Digests are of the bytes as they are stored.
            headers={"Accept-Encoding": "identity", **(headers or {})},
            data=data,
            auth=_authenticate_as(authorization),
            timeout=TIMEOUT_S,
            stream=True,
        )

    def _is_registry(self, url: str) -> bool:
        """Uploads may go to another host (a bucket), which must not learn our credentials."""
        return url.startswith(self.reference.api_url.partition("/v2/")[0] + "/")


def _retries() -> Retry:
    """When the session sends a request again."""
    from urllib3 import BaseHTTPResponse
    from urllib3.util import Retry

    class BoundedRetry(Retry):
        def get_retry_after(self, response: BaseHTTPResponse) -> float | None:
            pause_s = super().get_retry_after(response)
            return None if pause_s is None else min(pause_s, MAX_PAUSE_S)

    return BoundedRetry(
        total=TRIES - 1,
        other=0,  # a certificate that is not trusted
        allowed_methods=RETRY_METHODS,
        status_forcelist=RETRY_STATUSES,
        backoff_factor=PAUSE_S,
        backoff_max=MAX_PAUSE_S,
        raise_on_status=False,
    )


def registry_backoff() -> Backoff:
    """Between the tries of a transfer."""
    return Backoff(TRIES, PAUSE_S, MAX_PAUSE_S)


# Responses


def read_response(
    reference: RegistryReference, response: Any, limit: int = DOCUMENT_LIMIT
) -> RegistryResponse:
    """The whole of a response of requests. IntegrityError for one of more than `limit` bytes."""
    content = b""
    for chunk in response.iter_content(CHUNK):
        content += chunk
        if len(content) > limit:
            raise IntegrityError(
                f"{reference.registry} sent more than {limit >> 20} MiB instead of a document.",
                advice="Check that this is a registry.",
            )
    return RegistryResponse(
        status=response.status_code,
        url=response.url,
        headers=response.headers,
        content=content,
    )


def tls_error(reference: RegistryReference, details: str) -> Unreachable:
    """The error for a registry whose certificate is not trusted, or that has no TLS."""
    registry = reference.registry
    if "CERTIFICATE_VERIFY_FAILED" not in details:
        return Unreachable(
            f"The registry {registry} does not speak TLS as this machine does.",
            advice="Passwords and images go to other machines by HTTPS only. Check the port, or put a "
            "proxy with TLS in front of it.",
            details=details,
        )
    files = ", ".join(dict.fromkeys(map(str, certificate_files(registry)))) or "none"
    return Unreachable(
        f"The certificate of the registry {registry} is not trusted.",
        advice=f"Put the certificate of your authority into /etc/docker/certs.d/{registry}/ca.crt, "
        f"or name it in SSL_CERT_FILE. Used in addition to the system's: {files}.",
        details=details,
    )


def unreachable_error(reference: RegistryReference, failure: ConnectionFailed) -> Unreachable:
    resume = "then run the same command again: it continues where it stopped."
    if failure.host and failure.host != urlsplit(reference.api_url).netloc:
        return Unreachable(
            f"{failure.host}, to which the registry {reference.registry} redirects, does not respond.",
            advice=f"Check that this machine can reach it; {resume}",
            details=str(failure),
        )
    problem, check = "does not respond", "its address and that it runs"
    if _is_caused_by(failure, socket.gaierror):
        problem, check = "has a name that this machine cannot resolve", "the spelling, and DNS"
    elif _is_caused_by(failure, ConnectionRefusedError):
        problem, check = "refuses connections: nothing listens there", "the port, and that it runs"
    return Unreachable(
        f"The registry {reference.registry} {problem}.",
        advice=f"Check {check}; {resume}",
        details=str(failure),
    )


def _is_caused_by(error: BaseException | None, kind: type[BaseException]) -> bool:
    while error is not None and not isinstance(error, kind):
        error = error.__cause__ or error.__context__
    return error is not None


def refusal_error(
    reference: RegistryReference, purpose: str, response: RegistryResponse
) -> ProvisionError:
    """The error for a response of an unexpected status."""
    message = _error_message(response)
    if response.status in (401, 403):
        login = stored_login(reference.registry)
        if response.status == 403:
            problem = "this user may not do that"
        elif login is None:
            problem = "it wants a password, and none is stored for it"
        elif login.user:
            problem = f"it does not accept the stored password of {login.user}"
        else:
            problem = "it does not accept the stored token"
        return ToolFailed(
            [reference.registry, purpose],
            response.status,
            f"{problem} ({message or 'not allowed'}).",
            advice=f"Run `docker login {reference.registry}`, as a user who may do that.",
        )
    if response.status == TOO_MANY_REQUESTS:
        return TimedOut(
            f"{reference.registry} asked for fewer requests, {TRIES} times in a row.",
            advice="Run the same command later.",
            details=message,
        )
    if response.status == 404 and purpose.startswith("GET manifests/"):
        return ToolMissing(
            f"There is no {reference} in that registry.",
            advice="Check its name and tag.",
            details=message,
        )
    return ToolFailed([reference.registry, purpose], response.status, message)


def _error_message(response: RegistryResponse) -> str:
    """The registry's message: the specification has a list of errors with code and message."""
    try:
        errors = parse_json(response.content)["errors"]
        return "; ".join(f"{error['code']}: {error['message']}" for error in errors)
    except (ValueError, KeyError, TypeError):
        return response.content[:500].decode(errors="replace")


def _authorization(session: Any, reference: RegistryReference, challenge: RegistryResponse) -> str:
    """The Authorization header that a 401 asks for.

    ToolFailed if the registry accepts none that we have, or wants our password over plain HTTP.
    """
    from requests.utils import parse_dict_header

    scheme, _, parameters = challenge.headers.get("WWW-Authenticate", "").partition(" ")
    login = stored_login(reference.registry)
    if scheme.lower() == "basic" and login is not None and login.user:
        return f"Basic {base64.b64encode(f'{login.user}:{login.secret}'.encode()).decode()}"
    if scheme.lower() != "bearer":
        raise refusal_error(reference, "log in", challenge)
    fields: dict[str, str] = parse_dict_header(parameters)  # type: ignore[no-untyped-call]
    token_url = fields.pop("realm", "")
    is_secure = urlsplit(token_url).scheme == "https"
    if urlsplit(reference.api_url).scheme == "https" and not is_secure:
        raise ToolFailed(
            [reference.registry, "log in"],
            challenge.status,
            f"it asks for our password without encryption, at {token_url}",
        )
    fields.setdefault("scope", f"repository:{reference.repository}:pull,push")
    query = {key: fields[key] for key in ("service", "scope") if fields.get(key)}
    response = _request_token(session, reference, token_url, query, login)
    if response.status != 200:
        raise refusal_error(reference, "log in", response)
    return f"Bearer {_parse_token(reference, response)}"


def _request_token(
    session: Any,
    reference: RegistryReference,
    url: str,
    query: dict[str, str],
    login: Login | None,
) -> RegistryResponse:
    options = {"timeout": TIMEOUT_S, "stream": True}
    if login is not None and not login.user:
        form = {
            "grant_type": "refresh_token",
            "refresh_token": login.secret,
            "client_id": "provision",
            **query,
        }
        response = session.post(url, data=form, auth=_authenticate_as(None), **options)
    else:
        auth = (login.user, login.secret) if login else _authenticate_as(None)
        response = session.get(url, params=query, auth=auth, **options)
    with response:
        return read_response(reference, response)


def _parse_token(reference: RegistryReference, response: RegistryResponse) -> str:
    try:
        document = parse_json(response.content)
        return str(document.get("token") or document["access_token"])
    except (ValueError, KeyError, AttributeError) as error:
        raise ToolFailed(
            [reference.registry, "log in"],
            response.status,
            f"{response.url.partition('?')[0]} sent no token",
        ) from error


def _authenticate_as(authorization: str | None) -> Callable[[Any], Any]:
    """What requests calls to authenticate a request. If we only set the header, it would replace it
    by what it finds in ~/.netrc."""

    def add_header(request: Any) -> Any:
        if authorization is not None:
            request.headers["Authorization"] = authorization
        return request

    return add_header
