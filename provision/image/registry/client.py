"""Requests to one repository of a registry, as whoever we are there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urljoin, urlsplit

from provision.adapters.http.session import open_registry_session
from provision.image.registry.reference import Target
from provision.image.registry.responses import LIMIT, TRIES, Answer, Broken, insist, read
from provision.image.registry.tokens import TIMEOUT_S, as_known, authorization


class Registry:
    """One repository. The session keeps connections, and what was learned of who we are."""

    def __init__(self, to: Target) -> None:
        self.to = to
        self._session = open_registry_session()
        self._authorization: str | None = None

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *exc: object) -> None:
        self._session.close()

    def ask(
        self,
        method: str,
        place: str,
        *,
        fine: tuple[int, ...],
        limit: int = LIMIT,
        tries: int = TRIES,
        **more: Any,
    ) -> Answer:
        """An answer that is one of `fine`; tried again where that may help. IntegrityError for one that is larger than `limit`."""
        return insist(
            self.to,
            f"{method} {place.partition('?')[0]}",
            lambda: self.once(method, place, limit=limit, **more),
            fine,
            tries,
        )

    def once(self, method: str, place: str, *, limit: int = LIMIT, **more: Any) -> Answer:
        """One answer, whatever it is. Raises Broken."""
        with self.stream(method, place, **more) as response:
            return read(self.to, response, limit)

    @contextmanager
    def stream(
        self,
        method: str,
        place: str,
        *,
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
    ) -> Iterator[Any]:
        """A response that is not yet read; where the registry asks who we are, it is told first. Raises Broken, also in the block."""
        import requests
        from urllib3.exceptions import HTTPError

        url = urljoin(self.to.base, place)
        try:
            response = self._request(method, url, headers, data)
            if response.status_code == 401 and self._is_ours(
                response.url
            ):  # to another host, it would be our password that is asked for
                with response:
                    told = read(self.to, response)
                self._authorization = authorization(self._session, self.to, told)
                response = self._request(method, url, headers, data)
            with response:
                yield response
        except (requests.RequestException, HTTPError, ConnectionError) as error:
            asked = getattr(getattr(error, "request", None), "url", None) or url
            raise Broken(_without_queries(str(error)), urlsplit(asked).netloc) from error

    def _request(
        self, method: str, url: str, headers: Mapping[str, str] | None, data: bytes | None
    ) -> Any:
        own = self._authorization if self._is_ours(url) else None
        sent = {
            "Accept-Encoding": "identity",
            **(headers or {}),
        }  # digests are of the bytes as they lie there
        return self._session.request(
            method, url, headers=sent, data=data, auth=as_known(own), timeout=TIMEOUT_S, stream=True
        )

    def _is_ours(self, url: str) -> bool:
        """Uploads may go to another host (a bucket), which must not learn our credentials."""
        return url.startswith(self.to.base.partition("/v2/")[0] + "/")


def _without_queries(words: str) -> str:
    """Signed addresses of buckets let whoever reads them in."""
    return re.sub(r"\?\S+", "?...", words)
