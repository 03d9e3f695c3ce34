"""Connections, and what is asked through them: is a file served, small files, pieces of large ones, files by hash."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from provision.adapters.http.hash import sha256_of
from provision.adapters.http.pool import AT_ONCE, in_parallel
from provision.adapters.http.retry import ADVICE, Pace, again, silence_s
from provision.core.errors import IntegrityError, ProvisionError, Unreachable, from_system
from provision.core.mirrors import path_of, without_login

if TYPE_CHECKING:
    import requests

CONNECT_S = 10.0
TEXT_LIMIT = 64 << 20
# What a server may say now and not say in a moment (RFC 9110; 429 is RFC 6585).
PASSING = (408, 425, 429, 500, 502, 503, 504)
State = Literal["there", "gone", "changed", "silent", "other"]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What became of asking for a file: there; gone (the server says so); changed (its hash is another); silent (no answer); other
    (an answer that says neither)."""

    state: State
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A file to download."""

    url: str
    sha256: str
    target: Path


class Web:
    """Connections that are kept open between requests; threads may share them. Close it, or use `with`."""

    def __init__(self, pip: Mapping[str, str] | None = None) -> None:
        """pip: its settings by name (`proxy`, `cert`, `client-cert`)."""
        self._session = _session(pip or {})
        self._silence_s = silence_s()

    def __enter__(self) -> Web:
        return self

    def __exit__(self, *exc: object) -> None:
        self._session.close()

    def text(self, url: str) -> str:
        """A small text. Raises Unreachable."""
        if url.startswith("file:"):
            return _local_text(url)
        try:
            return self.content(url).decode("utf-8")
        except UnicodeDecodeError as error:
            raise Unreachable(f"{without_login(url)} is not a text.") from error

    def content(self, url: str) -> bytes:
        """A small file of a server. Raises Unreachable."""
        return again(lambda: self._content(url), url)

    def _content(self, url: str) -> bytes:
        with self._get(url) as response:
            _require(response, url)
            return self._body(response)

    def piece(self, url: str, begin: int, end: int) -> tuple[bytes, int]:
        """The bytes of a server's file from `begin` up to `end`, and how many the whole file has. Raises Unreachable, also for a server
        that sends whole files only."""
        return again(lambda: self._piece(url, begin, end), url)

    def _piece(self, url: str, begin: int, end: int) -> tuple[bytes, int]:
        with self._get(url, {"Range": f"bytes={begin}-{end - 1}"}) as response:
            _require(response, url)
            told = re.fullmatch(
                rf"bytes {begin}-(\d+)/(\d+)", response.headers.get("Content-Range", "")
            )
            if response.status_code != 206 or not told or int(told[1]) >= end:
                raise Unreachable(
                    f"{without_login(url)} cannot be had in pieces: the server sends whole files only."
                )
            return self._body(response), int(told[2])

    def _body(self, response: requests.Response) -> bytes:
        pieces, size = [], 0
        pace = Pace(self._silence_s)
        for piece in _pieces(response):
            pace.came(len(piece))
            size += len(piece)
            if size > TEXT_LIMIT:
                raise Unreachable(f"{without_login(response.url)} is larger than a text should be.")
            pieces.append(piece)
        return b"".join(pieces)

    def ask(self, url: str, sha256: str) -> Answer:
        """Whether a file is served, without taking it; one on the disk is also read, since that costs next to nothing."""
        if url.startswith("file:"):
            return _ask_disk(path_of(url), sha256)
        try:
            return _answer(again(lambda: self._status(url), url))
        except Unreachable as error:
            return Answer(state="silent", detail=error.message.rpartition(": ")[2].rstrip("."))

    def _status(self, url: str) -> int:
        import requests

        status = self._session.head(
            url, timeout=(CONNECT_S, self._silence_s), allow_redirects=True
        ).status_code
        if status in (400, 401, 403, 405, 501):  # some servers know no HEAD, or allow only GET
            with self._get(url, {"Range": "bytes=0-0"}) as response:
                status = response.status_code
        if status in PASSING:
            raise requests.exceptions.HTTPError(f"HTTP {status}")
        return status

    def download(
        self, wanted: Sequence[Wanted], done: Callable[[Wanted], None]
    ) -> list[tuple[Wanted, ProvisionError]]:
        """Download files, several at a time, and return those that could not be had, each with why; the others stand under their
        names, and `done` is told of each. The disk's own errors are raised."""
        failed: list[tuple[Wanted, ProvisionError]] = []
        for one, error in in_parallel(self._one, wanted):
            if error is None:
                done(one)
            else:
                failed.append((one, error))
        return sorted(failed, key=lambda pair: str(pair[0].target))

    def _one(self, wanted: Wanted) -> ProvisionError | None:
        part = part_of(wanted.target)
        try:
            wanted.target.parent.mkdir(parents=True, exist_ok=True)
            self._fill(wanted, part)
            os.replace(part, wanted.target)
        except (Unreachable, IntegrityError) as error:
            return error
        except OSError as error:
            raise from_system(error) from error
        return None

    def _fill(self, wanted: Wanted, part: Path) -> None:
        """Make `part` whole and right. A part whose hash is wrong at the end is thrown away, and fetched once more from its
        beginning: an earlier run may have left it, or a proxy may have put something of its own in between."""
        if wanted.url.startswith("file:"):
            _copy(wanted, part)
            _check(wanted, part)
            return
        began_empty = not part.exists()
        self._receive(wanted, part)
        try:
            _check(wanted, part)
        except IntegrityError:
            if began_empty:
                raise
            self._receive(wanted, part)
            _check(wanted, part)

    def _receive(self, wanted: Wanted, part: Path) -> None:
        """Fetch what is missing of `part`; a try that brought something does not count as one in vain."""
        again(lambda: self._append(wanted.url, part), wanted.url, progress=lambda: _size(part))

    def _append(self, url: str, part: Path) -> None:
        have = _size(part)
        with self._get(url, {"Range": f"bytes={have}-"} if have else {}) as response:
            if (
                have and response.status_code == 416
            ):  # nothing is missing, or the part is not of this file: its hash will tell
                return
            _require(response, url)
            continues = response.status_code == 206
            pace = Pace(self._silence_s)
            with part.open("ab" if continues else "wb") as file:
                for piece in _pieces(response):
                    pace.came(len(piece))
                    file.write(piece)

    def _get(self, url: str, headers: Mapping[str, str] | None = None) -> requests.Response:
        plain = {
            "Accept-Encoding": "identity",
            **(headers or {}),
        }  # a file's hash is that of its bytes as they lie there
        return self._session.get(
            url, headers=plain, stream=True, timeout=(CONNECT_S, self._silence_s)
        )


def _pieces(response: requests.Response) -> Iterator[bytes]:
    """What has arrived, as it arrives: waiting for a piece of some length would wait for ever on a server that trickles."""
    while piece := response.raw.read1(1 << 18):
        yield piece


def _session(pip: Mapping[str, str]) -> requests.Session:
    import requests
    from requests.adapters import HTTPAdapter

    session = requests.Session()
    session.headers["User-Agent"] = "provision"
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(pool_connections=AT_ONCE, pool_maxsize=AT_ONCE))
    if not os.environ.get("REQUESTS_CA_BUNDLE") and (
        bundle := pip.get("cert") or os.environ.get("SSL_CERT_FILE")
    ):
        session.verify = bundle
    if pip.get("client-cert"):
        session.cert = pip["client-cert"]
    if pip.get("proxy") and not any(
        os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
    ):
        session.proxies = {"http": pip["proxy"], "https": pip["proxy"]}
    return session


def _answer(status: int) -> Answer:
    if 200 <= status < 400 or status == 416:
        return Answer(state="there")
    if status in (404, 410):
        return Answer(state="gone", detail=f"HTTP {status}")
    return Answer(state="other", detail=f"HTTP {status}")


def _require(response: requests.Response, url: str) -> None:
    import requests

    status = response.status_code
    if status in PASSING:
        response.close()
        raise requests.exceptions.HTTPError(f"HTTP {status}")
    if not 200 <= status < 300:
        response.close()
        gone = (
            " is gone: the server says"
            if status in (404, 410)
            else " cannot be had: the server says"
        )
        raise Unreachable(
            f"{without_login(url)}{gone} HTTP {status}.",
            advice=ADVICE if status not in (404, 410) else "",
        )


def part_of(target: Path) -> Path:
    """Where a download lies until it is whole."""
    return target.with_name(f".{target.name}.part")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _check(wanted: Wanted, part: Path) -> None:
    """Keep a part that is right; one that is wrong is no use to the next run either."""
    if (found := sha256_of(part)) != wanted.sha256:
        part.unlink()
        raise IntegrityError(
            f"{without_login(wanted.url)} is not the file that the lock names: its sha256 is {found[:16]}…, not {wanted.sha256[:16]}….",
            advice="A mirror may be damaged, or a login page answers in its place; nothing of it was kept.",
        )


def _copy(wanted: Wanted, part: Path) -> None:
    source = path_of(wanted.url)
    if not source.is_file():
        raise Unreachable(f"{source} is not there.")
    with source.open("rb") as reader, part.open("wb") as writer:
        while piece := reader.read(1 << 20):
            writer.write(piece)


def _ask_disk(path: Path, sha256: str) -> Answer:
    if not path.is_file():
        return Answer(state="gone", detail="the file is not there")
    try:
        found = sha256_of(path)
    except OSError as error:
        return Answer(state="other", detail=str(error.strerror))
    return (
        Answer(state="there")
        if found == sha256
        else Answer(state="changed", detail=f"its sha256 is {found[:16]}…")
    )


def _local_text(url: str) -> str:
    try:
        return path_of(url).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Unreachable(
            f"{path_of(url)} cannot be read: {getattr(error, 'strerror', None) or 'it is not a text'}."
        ) from error
