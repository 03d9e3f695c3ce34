"""Requests to one repository of a registry: who we are, what is tried again, and what an answer that says no becomes."""

from __future__ import annotations

import base64
import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin

from provision.errors import IntegrityError, ProvisionError, TimedOut, ToolFailed, ToolMissing, Unreachable
from provision.pipeline.image.registry.places import Target
from provision.pipeline.image.sdk import credentials

TRIES = 5
PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
TIMEOUT_S = (10.0, 120.0)  # to connect; between two signs of life
PIECE = 1 << 20
# Of a document. The specification lets registries refuse manifests above 4 MiB.
LIMIT = 8 << 20
TOO_MANY = 429
BUSY = (TOO_MANY, 500, 502, 503, 504)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a registry said, read whole."""

    status: int
    reason: str
    url: str
    headers: Mapping[str, str]
    content: bytes


class Broken(Exception):
    """The connection broke, or never came about."""


class Registry:
    """One repository. The session keeps connections, and what was learned of who we are."""

    def __init__(self, to: Target) -> None:
        self.to = to
        self._session = _session()
        self._authorization: str | None = None

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *exc: object) -> None:
        self._session.close()

    def ask(self, method: str, place: str, *, fine: tuple[int, ...], limit: int = LIMIT, tries: int = TRIES, **more: Any) -> Answer:
        """An answer that is one of `fine`; tried again where that may help. IntegrityError for one that is larger than `limit`."""
        answer = None
        for attempt in range(tries):
            try:
                answer = self.once(method, place, limit=limit, **more)
            except Broken as broken:
                if attempt == tries - 1:
                    raise unreachable(self.to, broken) from broken
                rest(attempt, None)
                continue
            if answer.status in fine:
                return answer
            if answer.status not in BUSY or attempt == tries - 1:
                break
            rest(attempt, answer)
        assert answer is not None
        raise refused(self.to, f"{method} {place.partition('?')[0]}", answer)

    def once(self, method: str, place: str, *, limit: int = LIMIT, **more: Any) -> Answer:
        """One answer, whatever it is. Raises Broken."""
        with self.stream(method, place, **more) as response:
            return self.read(response, limit)

    @contextmanager
    def stream(self, method: str, place: str, *, headers: Mapping[str, str] | None = None, data: bytes | None = None) -> Iterator[Any]:
        """A response that is not yet read; where the registry asks who we are, it is told first. Raises Broken, also in the block."""
        import requests
        from urllib3.exceptions import HTTPError

        url = urljoin(self.to.base, place)
        try:
            response = self._request(method, url, headers, data)
            if response.status_code == 401 and self._is_ours(response.url):  # to another host, it would be our password that is asked for
                with response:
                    told = self.read(response)
                self._authorization = self._introduce(told)
                response = self._request(method, url, headers, data)
            with response:
                yield response
        except (requests.RequestException, HTTPError, ConnectionError) as error:
            raise Broken(str(error)) from error

    def _request(self, method: str, url: str, headers: Mapping[str, str] | None, data: bytes | None) -> Any:
        own = self._authorization if self._is_ours(url) else None
        sent = {"Accept-Encoding": "identity", **(headers or {})}  # digests are of the bytes as they lie there
        return self._session.request(method, url, headers=sent, data=data, auth=_as(own), timeout=TIMEOUT_S, stream=True)

    def read(self, response: Any, limit: int = LIMIT) -> Answer:
        content = b""
        for piece in response.iter_content(PIECE):
            content += piece
            if len(content) > limit:
                raise IntegrityError(
                    f"{self.to.registry} answers with more than {limit >> 20} MiB where a document should be.",
                    advice="See whether that is a registry.",
                )
        return Answer(
            status=response.status_code, reason=response.reason, url=response.url, headers=response.headers, content=content
        )  # fmt: skip

    def _is_ours(self, url: str) -> bool:
        """Uploads may go to another host (a bucket), which must not learn our credentials."""
        return url.startswith(self.to.base.partition("/v2/")[0] + "/")

    def _introduce(self, answer: Answer) -> str:
        """The Authorization header that a 401 asks for: Basic, or a token from where it says (distribution's token specification)."""
        import requests
        from requests.utils import parse_dict_header

        kind, _, rest = answer.headers.get("WWW-Authenticate", "").partition(" ")
        known = credentials(self.to.registry)
        if kind.lower() == "basic" and known is not None:
            return f"Basic {base64.b64encode(':'.join(known).encode()).decode()}"
        if kind.lower() != "bearer":
            raise refused(self.to, "log in", answer)
        asked: dict[str, str] = parse_dict_header(rest)  # type: ignore[no-untyped-call]
        if self.to.base.startswith("https:") and not asked.get("realm", "").startswith("https:"):
            raise ToolFailed([self.to.registry, "log in"], answer.status, f"it asks for our password in the clear, at {asked.get('realm')}")
        scope = asked.get("scope") or f"repository:{self.to.repository}:pull,push"
        parameters = {key: value for key, value in {"service": asked.get("service"), "scope": scope}.items() if value}
        try:
            with self._session.get(
                asked.get("realm", ""), params=parameters, auth=known or _as(None), timeout=TIMEOUT_S, stream=True
            ) as response:
                told = self.read(response)
        except requests.RequestException as error:
            raise unreachable(self.to, error) from error
        if told.status != 200:
            raise refused(self.to, "log in", told)
        return f"Bearer {self._token(told)}"

    def _token(self, told: Answer) -> str:
        try:
            document = json.loads(told.content)
            return str(document.get("token") or document["access_token"])
        except (ValueError, LookupError, AttributeError) as error:
            raise ToolFailed([self.to.registry, "log in"], told.status, f"no token comes from {told.url.partition('?')[0]}") from error


def _session() -> Any:
    """A session that takes credentials along to no other host, and none from ~/.netrc either."""
    import requests

    class Session(requests.Session):
        def rebuild_auth(self, prepared_request: Any, response: Any) -> None:
            if self.should_strip_auth(response.request.url, prepared_request.url):  # type: ignore[no-untyped-call]
                prepared_request.headers.pop("Authorization", None)

    return Session()


def _as(authorization: str | None) -> Callable[[Any], Any]:
    """What requests calls to say who asks. With a header alone it would put what it finds in ~/.netrc in its place."""

    def tell(request: Any) -> Any:
        if authorization is not None:
            request.headers["Authorization"] = authorization
        return request

    return tell


def rest(attempt: int, answer: Answer | None) -> None:
    told = answer.headers.get("Retry-After", "") if answer is not None else ""
    time.sleep(min(LONGEST_PAUSE_S, float(told) if told.isdigit() else PAUSE_S * 2**attempt))


def unreachable(to: Target, error: Exception) -> Unreachable:
    advice = "See whether its address is right and it runs; then run the same command again: what is there is kept."
    return Unreachable(f"The registry {to.registry} does not answer.", advice=advice, details=str(error))


def refused(to: Target, purpose: str, answer: Answer) -> ProvisionError:
    words = _words(answer)
    if answer.status in (401, 403):
        advice = f"`docker login {to.registry}` with a user who may do that there."
        return ToolFailed([to.registry, purpose], answer.status, words or "not allowed", advice=advice)
    if answer.status == TOO_MANY:
        return TimedOut(
            f"{to.registry} asks for fewer requests, {TRIES} times on end.", advice="Run the same command later.", details=words
        )
    if answer.status == 404 and purpose.startswith("GET manifests/"):
        return ToolMissing(f"There is no {to} in that registry.", advice="See whether name and tag are right.", details=words)
    return ToolFailed([to.registry, purpose], answer.status, words)


def _words(answer: Answer) -> str:
    """The registry's own words."""
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        return "; ".join(_told(json.loads(answer.content))) or str(answer.reason)
    return answer.content[:500].decode(errors="replace") or str(answer.reason)


def _told(document: Mapping[str, Any]) -> Iterator[str]:
    for error in document.get("errors") or []:
        yield f"{error.get('code')}: {error.get('message')}"
