"""What registries answer, when it is worth to ask again, and what an answer that says no becomes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from provision.adapters.http import Backoff
from provision.core.errors import (
    IntegrityError,
    ProvisionError,
    TimedOut,
    ToolFailed,
    ToolMissing,
    Unreachable,
)
from provision.image.registry.reference import Target

TRIES = 5
PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
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
    """The connection broke, or never came about. host: with whom, which may be another one than the registry."""

    def __init__(self, words: str, host: str = "") -> None:
        super().__init__(words)
        self.host = host


def read(to: Target, response: Any, limit: int = LIMIT) -> Answer:
    """The whole of a response of requests. IntegrityError for one that is larger than `limit`."""
    content = b""
    for piece in response.iter_content(PIECE):
        content += piece
        if len(content) > limit:
            raise IntegrityError(
                f"{to.registry} answers with more than {limit >> 20} MiB where a document should be.",
                advice="See whether that is a registry.",
            )
    return Answer(
        status=response.status_code,
        reason=response.reason,
        url=response.url,
        headers=response.headers,
        content=content,
    )


def insist(
    to: Target, purpose: str, once: Callable[[], Answer], fine: tuple[int, ...], tries: int = TRIES
) -> Answer:
    """An answer that is one of `fine`; asked for again where that may help."""
    backoff = registry_backoff(tries)
    while True:
        trouble: Answer | Broken
        try:
            answer = once()
        except Broken as broken:
            backoff.count_failure()
            if backoff.is_exhausted:
                raise unreachable(to, broken) from broken
            trouble = broken
        else:
            if answer.status in fine:
                return answer
            backoff.count_failure()
            if answer.status not in BUSY or backoff.is_exhausted:
                raise refused(to, purpose, answer)
            trouble = answer
        backoff.wait(retry_after(trouble))


def registry_backoff(tries: int = TRIES) -> Backoff:
    return Backoff(tries, PAUSE_S, LONGEST_PAUSE_S)


def retry_after(trouble: Answer | Broken | None) -> str:
    """What an answer says in its Retry-After header, if there is an answer that has one."""
    return trouble.headers.get("Retry-After", "") if isinstance(trouble, Answer) else ""


def unreachable(to: Target, broken: Broken) -> Unreachable:
    again = "then run the same command again: what is there is kept."
    if broken.host and broken.host != urlsplit(to.base).netloc:
        message = (
            f"{broken.host}, where the registry {to.registry} sends for its files, does not answer."
        )
        return Unreachable(
            message, advice=f"See whether this machine reaches it; {again}", details=str(broken)
        )
    advice = f"See whether its address is right and it runs; {again}"
    return Unreachable(
        f"The registry {to.registry} does not answer.", advice=advice, details=str(broken)
    )


def refused(to: Target, purpose: str, answer: Answer) -> ProvisionError:
    words = _words(answer)
    if answer.status in (401, 403):
        advice = f"`docker login {to.registry}` with a user who may do that there."
        return ToolFailed(
            [to.registry, purpose], answer.status, words or "not allowed", advice=advice
        )
    if answer.status == TOO_MANY:
        return TimedOut(
            f"{to.registry} asks for fewer requests, {TRIES} times on end.",
            advice="Run the same command later.",
            details=words,
        )
    if answer.status == 404 and purpose.startswith("GET manifests/"):
        return ToolMissing(
            f"There is no {to} in that registry.",
            advice="See whether name and tag are right.",
            details=words,
        )
    return ToolFailed([to.registry, purpose], answer.status, words)


def _words(answer: Answer) -> str:
    """The registry's own words."""
    with contextlib.suppress(ValueError, TypeError, AttributeError, RecursionError):
        return "; ".join(_told(json.loads(answer.content))) or str(answer.reason)
    return answer.content[:500].decode(errors="replace") or str(answer.reason)


def _told(document: Mapping[str, Any]) -> Iterator[str]:
    for error in document.get("errors") or []:
        yield f"{error.get('code')}: {error.get('message')}"
