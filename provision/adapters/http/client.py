"""The client for indexes and channels: small files, ranges of large ones, and downloads checked by
hash."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from provision.adapters.http.retry import ADVICE, MinimumRate, read_timeout_s, retry_request
from provision.adapters.http.session import CONNECTIONS, open_session
from provision.core.errors import IntegrityError, Unreachable
from provision.core.mirrors import path_from_url
from provision.core.system_errors import from_system
from provision_runtime.facts.digests import file_sha256 as sha256_of

if TYPE_CHECKING:
    import requests

CONNECT_TIMEOUT_S = 10.0
TEXT_LIMIT = 64 << 20
READ_BYTES = 1 << 18
# Statuses that may be different in a moment (RFC 9110; 429 is RFC 6585).
PASSING_STATUSES = (408, 425, 429, 500, 502, 503, 504)
GONE_STATUSES = (404, 410)
T = TypeVar("T")
R = TypeVar("R")


class HttpClient:
    """Keeps connections open between requests; threads may share it. Close it by using it in a
    `with` statement."""

    def __init__(self, pip_settings: Mapping[str, str] | None = None) -> None:
        self._session = open_session(pip_settings or {})
        self._read_timeout_s = read_timeout_s()

    def __enter__(self) -> HttpClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self._session.close()

    def content(
        self, url: str, headers: Mapping[str, str] | None = None, missing: bytes | None = None
    ) -> bytes:
        """A small file. missing: what stands for one that the server does not have.

        Raises Unreachable.
        """
        if url.startswith("file:"):
            try:
                return path_from_url(url).read_bytes()
            except OSError as error:
                raise Unreachable(f"{url} cannot be read: {error.strerror}.") from error

        def fetch() -> bytes:
            with self._get(url, headers) as response:
                if missing is not None and response.status_code in GONE_STATUSES:
                    return missing
                _require_success(response, url)
                return self._body(response)

        return retry_request(fetch, url)

    def byte_range(self, url: str, begin: int, end: int) -> tuple[bytes, int]:
        """The bytes of a server's file from `begin` up to `end`, and the size of the whole file.

        Raises Unreachable, also if the server only sends whole files.
        """

        def fetch() -> tuple[bytes, int]:
            with self._get(url, {"Range": f"bytes={begin}-{end - 1}"}) as response:
                _require_success(response, url)
                sent_range = re.fullmatch(
                    rf"bytes {begin}-(\d+)/(\d+)", response.headers.get("Content-Range", "")
                )
                if response.status_code != 206 or not sent_range or int(sent_range[1]) >= end:
                    raise Unreachable(
                        f"{url} could not be read: the server does not support range requests."
                    )
                return self._body(response), int(sent_range[2])

        return retry_request(fetch, url)

    def _body(self, response: requests.Response) -> bytes:
        body = bytearray()
        rate = MinimumRate(self._read_timeout_s)
        for piece in _pieces(response):
            rate.received(len(piece))
            body += piece
            if len(body) > TEXT_LIMIT:
                raise Unreachable(f"{response.url} is too large for a text file.")
        return bytes(body)

    def download(self, url: str, sha256: str, target: Path) -> None:
        """Download a file, which gets its name when its hash is right. Raises Unreachable,
        IntegrityError, and the disk's errors in our terms."""
        partial = partial_path(target)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            if url.startswith("file:"):
                source = path_from_url(url)
                if not source.is_file():
                    raise Unreachable(f"{source} does not exist.")
                shutil.copyfile(source, partial)
            else:
                retry_request(lambda: self._write(url, partial), url)
            _check_hash(url, sha256, partial)
            os.replace(partial, target)
        except OSError as error:
            raise from_system(error, target) from error

    def _write(self, url: str, partial: Path) -> None:
        with self._get(url) as response:
            _require_success(response, url)
            rate = MinimumRate(self._read_timeout_s)
            with partial.open("wb") as file:
                for piece in _pieces(response):
                    rate.received(len(piece))
                    file.write(piece)

    def _get(self, url: str, headers: Mapping[str, str] | None = None) -> requests.Response:
        # A file's hash is that of its bytes as the server stores them, so no compression.
        return self._session.get(
            url,
            headers={"Accept-Encoding": "identity", **(headers or {})},
            stream=True,
            timeout=(CONNECT_TIMEOUT_S, self._read_timeout_s),
        )


def _pieces(response: requests.Response) -> Iterator[bytes]:
    """The response's bytes as they arrive: reading pieces of a fixed length would block forever on
    a server that trickles."""
    while piece := response.raw.read1(READ_BYTES):
        yield piece


def _require_success(response: requests.Response, url: str) -> None:
    """Raise Unreachable for a status that is not a success; for one that may pass, the HTTPError
    that is retried."""
    import requests

    status = response.status_code
    if 200 <= status < 300:
        return
    response.close()
    if status in PASSING_STATUSES:
        raise requests.exceptions.HTTPError(f"HTTP {status}")
    if status in GONE_STATUSES:
        raise Unreachable(f"{url} is gone: the server answers HTTP {status}.")
    advice = ADVICE
    if status == 401:
        login = f"machine {urlsplit(url).hostname} login USER password PASSWORD"
        advice = f"It asks for a login: write `{login}` into ~/.netrc (chmod 600)."
    raise Unreachable(
        f"{url} could not be fetched: the server answers HTTP {status}.", advice=advice
    )


def partial_path(target: Path) -> Path:
    """Where a download lies until it is complete."""
    return target.with_name(f".{target.name}.part")


def _check_hash(url: str, sha256: str, partial: Path) -> None:
    """Raise IntegrityError for a file with another hash, and delete it: the next run could not use
    it either."""
    actual = sha256_of(partial)
    if actual != sha256:
        partial.unlink()
        raise IntegrityError(
            f"{url} is not the file that the lock names: its sha256 is "
            f"{actual[:16]}…, not {sha256[:16]}….",
            advice="A mirror may be damaged, or a login page may answer in its place. The file was "
            "deleted.",
        )


def in_parallel(work: Callable[[T], R], items: Iterable[T]) -> Iterator[tuple[T, R]]:
    """Each item with its result, in the order in which they finish. A worker's exception ends
    the iteration and is raised here."""
    from concurrent.futures import ThreadPoolExecutor, as_completed

    pool = ThreadPoolExecutor(CONNECTIONS)
    try:
        futures = {pool.submit(work, item): item for item in items}
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        # Ctrl-C does not wait for a worker that waits for a silent server: `provision` ends itself.
        pool.shutdown(wait=False, cancel_futures=True)
