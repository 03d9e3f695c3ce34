"""Requests to one repository of a registry: who we are there, what it answers, when we retry, and
what error a refusal becomes.

Sources of the login: distribution's "Token Authentication Specification" and "OAuth2 Token
Authentication".
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit

from provision.adapters.docker import Login, stored_login
from provision.adapters.http import Backoff
from provision.adapters.http.session import certificate_files, open_registry_session
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
from provision.image.registry.reference import RegistryReference

TIMEOUT_S = (10.0, 120.0)  # to connect; between two signs of life
TRIES = 5
PAUSE_S = 0.5
MAX_PAUSE_S = 30.0
# Bytes of a document. The specification lets registries refuse manifests above 4 MiB.
DOCUMENT_LIMIT = 8 << 20
TOO_MANY_REQUESTS = 429
RETRY_STATUSES = (TOO_MANY_REQUESTS, 500, 502, 503, 504)


@dataclass(frozen=True, kw_only=True)
class RegistryResponse:
    """What a registry answered, read completely."""

    status: int
    reason: str
    url: str
    headers: Mapping[str, str]
    content: bytes


class ConnectionFailed(Exception):
    """The connection broke, or could not be made. host: to whom; it may be another than the
    registry, to which it redirected."""

    def __init__(self, message: str, host: str = "") -> None:
        super().__init__(message)
        self.host = host


class RegistryClient:
    """Requests to one repository. Keeps connections and the login for later requests."""

    def __init__(self, reference: RegistryReference) -> None:
        self.reference = reference
        self._session = open_registry_session(reference.registry)
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
        tries: int = TRIES,
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
    ) -> RegistryResponse:
        """A response with one of the `expected` statuses; retries where that may help.

        IntegrityError for a response of more than `limit` bytes; other refusals as in
        `refusal_error`.
        """
        return retry(
            self.reference,
            f"{method} {path.partition('?')[0]}",
            lambda: self.request_once(method, path, limit=limit, headers=headers, data=data),
            expected,
            tries,
        )

    def request_once(
        self,
        method: str,
        path: str,
        *,
        limit: int = DOCUMENT_LIMIT,
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
    ) -> RegistryResponse:
        """One response, whatever its status. Raises ConnectionFailed."""
        with self.stream(method, path, headers=headers, data=data) as response:
            return read_response(self.reference, response, limit)

    @contextmanager
    def stream(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
    ) -> Iterator[Any]:
        """A response whose content is not read yet; logs in first if the registry requires it.
        Raises ConnectionFailed, also within the block."""
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
            message = _without_queries(str(error))
            if isinstance(error, requests.exceptions.SSLError):
                raise untrusted_error(self.reference, message) from error
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


def _without_queries(message: str) -> str:
    """Signed URLs of buckets give access to anyone who reads them."""
    return re.sub(r"\?\S+", "?...", message)


# Responses and retries


def read_response(
    reference: RegistryReference, response: Any, limit: int = DOCUMENT_LIMIT
) -> RegistryResponse:
    """The whole of a response of requests. IntegrityError for one of more than `limit` bytes."""
    content = b""
    for chunk in response.iter_content(CHUNK):
        content += chunk
        if len(content) > limit:
            raise IntegrityError(
                f"{reference.registry} answers with more than {limit >> 20} MiB instead of a "
                "document.",
                advice="Check that this is a registry.",
            )
    return RegistryResponse(
        status=response.status_code,
        reason=response.reason,
        url=response.url,
        headers=response.headers,
        content=content,
    )


def retry(
    reference: RegistryReference,
    purpose: str,
    send: Callable[[], RegistryResponse],
    expected: tuple[int, ...],
    tries: int = TRIES,
) -> RegistryResponse:
    """A response with one of the `expected` statuses. Retries after broken connections and statuses
    that pass; raises the error of the last try."""
    backoff = registry_backoff(tries)
    while True:
        outcome: RegistryResponse | ConnectionFailed
        try:
            outcome = send()
        except ConnectionFailed as failure:
            backoff.count_failure()
            if backoff.is_exhausted:
                raise unreachable_error(reference, failure) from failure
            outcome = failure
        else:
            if outcome.status in expected:
                return outcome
            backoff.count_failure()
            if backoff.is_exhausted or outcome.status not in RETRY_STATUSES:
                raise refusal_error(reference, purpose, outcome)
        backoff.wait(retry_after(outcome))


def registry_backoff(tries: int = TRIES) -> Backoff:
    return Backoff(tries, PAUSE_S, MAX_PAUSE_S)


def retry_after(outcome: RegistryResponse | ConnectionFailed | None) -> str:
    """The Retry-After header of a response; empty without one."""
    if isinstance(outcome, RegistryResponse):
        return outcome.headers.get("Retry-After", "")
    return ""


def untrusted_error(reference: RegistryReference, details: str) -> Unreachable:
    """The error for a registry whose certificate no trusted authority signed."""
    registry = reference.registry
    files = ", ".join(str(file) for file in certificate_files(registry)) or "none"
    return Unreachable(
        f"The certificate of the registry {registry} is not trusted.",
        advice=f"Put the certificate of your authority into /etc/docker/certs.d/{registry}/ca.crt, "
        f"or name it in SSL_CERT_FILE. Used besides the system's: {files}.",
        details=details,
    )


def unreachable_error(reference: RegistryReference, failure: ConnectionFailed) -> Unreachable:
    resume = "then run the same command again: it continues where it stopped."
    if failure.host and failure.host != urlsplit(reference.api_url).netloc:
        return Unreachable(
            f"{failure.host}, to which the registry {reference.registry} redirects for its files, "
            "does not answer.",
            advice=f"Check that this machine can reach it; {resume}",
            details=str(failure),
        )
    return Unreachable(
        f"The registry {reference.registry} does not answer.",
        advice=f"Check its address and that it runs; {resume}",
        details=str(failure),
    )


def refusal_error(
    reference: RegistryReference, purpose: str, response: RegistryResponse
) -> ProvisionError:
    """The error for a response of an unexpected status."""
    message = _error_message(response)
    if response.status in (401, 403):
        return ToolFailed(
            [reference.registry, purpose],
            response.status,
            message or "not allowed",
            advice=f"`docker login {reference.registry}` as a user who may do that there.",
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
    """The registry's own message: the specification has a list of errors with code and message."""
    text = response.content[:500].decode(errors="replace") or str(response.reason)
    try:
        document = parse_json(response.content)
    except ValueError:
        return text
    errors = document.get("errors") if isinstance(document, dict) else None
    if not isinstance(errors, list):
        return text
    messages = [
        f"{error.get('code')}: {error.get('message')}"
        for error in errors
        if isinstance(error, dict)
    ]
    return "; ".join(messages) or text


# Login


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
    response = retry(
        reference,
        "log in",
        lambda: _request_token(session, reference, token_url, query, login),
        expected=(200,),
    )
    return f"Bearer {_parse_token(reference, response)}"


def _request_token(
    session: Any,
    reference: RegistryReference,
    url: str,
    query: dict[str, str],
    login: Login | None,
) -> RegistryResponse:
    import requests

    options = {"timeout": TIMEOUT_S, "stream": True}
    try:
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
    except requests.RequestException as error:
        raise ConnectionFailed(str(error)) from error


def _parse_token(reference: RegistryReference, response: RegistryResponse) -> str:
    try:
        document = parse_json(response.content)
    except ValueError:
        document = None
    if isinstance(document, dict):
        token = document.get("token") or document.get("access_token")
        if token:
            return str(token)
    raise ToolFailed(
        [reference.registry, "log in"],
        response.status,
        f"{response.url.partition('?')[0]} sent no token",
    )


def _authenticate_as(authorization: str | None) -> Callable[[Any], Any]:
    """What requests calls to authenticate a request. If we only set the header, it would replace it
    by what it finds in ~/.netrc."""

    def add_header(request: Any) -> Any:
        if authorization is not None:
            request.headers["Authorization"] = authorization
        return request

    return add_header
