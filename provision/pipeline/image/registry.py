"""Images to registries, as the OCI distribution specification 1.1 has it: what is there already is not sent, what broke off is resumed.

Credentials are Docker's own (its config file and helpers, sdk.credentials). Names of this machine speak plain HTTP, as with Docker.
"""

from __future__ import annotations

import base64
import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urljoin

from provision.errors import IntegrityError, InvalidSpec, ProvisionError, TimedOut, ToolFailed, Unreachable
from provision.model import Image, Progress
from provision.pipeline.image import oci
from provision.pipeline.image.sdk import credentials

# host[:port]/repository[:tag]; a registry must be named, since none is ours.
_REFERENCE = re.compile(
    r"((?:[A-Za-z0-9-]+\.)+[A-Za-z0-9-]+(?::\d+)?|localhost(?::\d+)?|[A-Za-z0-9-]+:\d+|\[[0-9a-fA-F:]+\](?::\d+)?)"
    r"/([a-z0-9]+(?:(?:\.|_|__|-+|/)[a-z0-9]+)*)(?::([A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?"
)
_LOOPBACK = re.compile(r"(localhost|127\.\d+\.\d+\.\d+|\[::1\])(:\d+)?")
# Pieces of an upload: what is sent again when a connection breaks. Registries behind proxies often take no more than 100 MB at a time.
CHUNK = 32 << 20
TRIES = 5
PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
TIMEOUT_S = (10.0, 120.0)  # to connect; between two signs of life
TOO_MANY = 429
BUSY = (TOO_MANY, 500, 502, 503, 504)


@dataclass(frozen=True, kw_only=True)
class Target:
    """A place in a registry."""

    registry: str
    repository: str
    tag: str

    def __str__(self) -> str:
        return f"{self.registry}/{self.repository}:{self.tag}"

    @property
    def base(self) -> str:
        scheme = "http" if _LOOPBACK.fullmatch(self.registry) else "https"
        return f"{scheme}://{self.registry}/v2/{self.repository}/"


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """reference: by digest, which names these bytes for good. Sizes in bytes, of layers and documents."""

    reference: str
    tag: str
    sent: int
    present: int


def target(text: str, image: Image | None = None) -> Target:
    """What a user wrote, or InvalidSpec. Without a tag it is the image's own."""
    match = _REFERENCE.fullmatch(text)
    if match is None:
        raise InvalidSpec(
            f"{text!r} is not a place in a registry.", advice="Write HOST/NAME or HOST/NAME:TAG, for example registry.lab:5000/torch:2.3."
        )
    own = image.reference.rpartition(":")[2] if image else "latest"
    return Target(registry=match[1], repository=match[2], tag=match[3] or own)


def push(image: Image, to: Target, progress: Progress) -> Pushed:
    """Send what the registry lacks, then the manifest, which makes the image visible there.

    Unreachable where the registry does not answer, ToolFailed where it refuses, IntegrityError where a layer here is not what its
    digest says; each after TRIES where trying again could help.
    """
    written = oci.read(image.layout)
    if written is None or written.manifest_digest != image.manifest_digest:
        raise IntegrityError(f"{image.layout} is not the whole image any more.", advice="`provision image build` makes it again.")
    blobs = [*(layer.digest for layer in image.layers), image.image_id]
    sizes = {digest: oci.blob(image.layout, digest).stat().st_size for digest in blobs}
    sent = 0
    with _Registry(to) as registry, progress.meter(f"pushing to {to.registry}", sum(sizes.values())) as meter:
        for digest, size in sizes.items():
            if registry.has(digest):
                meter.advance(size)
            else:
                registry.upload(digest, oci.blob(image.layout, digest), size, meter.advance)
                sent += size
        registry.put_manifest(image.manifest_digest, oci.blob(image.layout, image.manifest_digest).read_bytes())
    reference = f"{to.registry}/{to.repository}@{image.manifest_digest}"
    return Pushed(reference=reference, tag=str(to), sent=sent, present=sum(sizes.values()) - sent)


class _Registry:
    """One repository. The session keeps connections, and what was learned of who we are."""

    def __init__(self, to: Target) -> None:
        import requests

        self._to = to
        self._session = requests.Session()
        self._authorization: str | None = None

    def __enter__(self) -> _Registry:
        return self

    def __exit__(self, *exc: object) -> None:
        self._session.close()

    def has(self, digest: str) -> bool:
        answer = self._ask("HEAD", f"blobs/{digest}", fine=(200, 404))
        return bool(answer.status_code == 200)

    def upload(self, digest: str, path: Path, size: int, advance: Callable[[int], None]) -> None:
        """In pieces. After a break the registry says how far it came; one that has forgotten the upload gets it anew."""
        for attempt in range(TRIES):
            try:
                with path.open("rb") as file:
                    self._send_all(self._begin(), file, digest, size, advance)
                return
            except _Lost as lost:
                advance(-lost.done)
                _rest(attempt, None)
        raise Unreachable(
            f"{self._to.registry} lost the upload of {digest[:19]} {TRIES} times.",
            advice="Run the same command again: what is there is kept.",
        )

    def _begin(self) -> str:
        answer = self._ask("POST", "blobs/uploads/", headers={"Content-Length": "0"}, fine=(202,))
        return str(urljoin(answer.url, answer.headers["Location"]))

    def _send_all(self, place: str, file: IO[bytes], digest: str, size: int, advance: Callable[[int], None]) -> None:
        done, failures = 0, 0
        while done < size:
            file.seek(done)
            piece = file.read(CHUNK)
            if not piece:
                raise IntegrityError(f"{digest} became shorter while it was sent.", advice="`provision image build` makes it again.")
            answer = self._send_piece(place, done, piece)
            if answer is not None and answer.status_code == 202:
                place, come, failures = urljoin(answer.url, answer.headers["Location"]), done + len(piece), 0
            elif answer is not None and answer.status_code not in (*BUSY, 404, 416):
                raise _refused(self._to, f"send {digest[:19]}", answer)
            elif failures == TRIES - 1:
                raise _Lost(done)
            else:
                _rest(failures, answer)
                failures += 1
                place, come = self._how_far(place, done)
            advance(come - done)
            done = come
        parameters = "&" if "?" in place else "?"
        self._ask("PUT", f"{place}{parameters}digest={digest}", headers={"Content-Length": "0"}, fine=(201,))

    def _send_piece(self, place: str, done: int, piece: bytes) -> Any:
        headers = {"Content-Range": f"{done}-{done + len(piece) - 1}", "Content-Type": "application/octet-stream"}
        try:
            return self._once("PATCH", place, headers=headers, data=piece)
        except _Broken:
            return None

    def _how_far(self, place: str, done: int) -> tuple[str, int]:
        """Where the upload goes on, and how many bytes the registry has (`Range: 0-99` are 100)."""
        answer = self._ask("GET", place, fine=(204, 404))
        if answer.status_code == 404:
            raise _Lost(done)
        last = answer.headers.get("Range", "").partition("-")[2]
        come = int(last) + 1 if last.isdigit() and last != "0" else 0  # distribution says 0-0 of nothing and of one byte alike
        return urljoin(answer.url, answer.headers.get("Location", place)), come

    def put_manifest(self, digest: str, content: bytes) -> None:
        answer = self._ask("PUT", f"manifests/{self._to.tag}", headers={"Content-Type": oci.MANIFEST}, data=content, fine=(201,))
        theirs = answer.headers.get("Docker-Content-Digest", digest)
        if theirs != digest:
            raise IntegrityError(
                f"{self._to} has {theirs} now, not {digest}.", advice="Push again; if it stays so, tell the registry's keeper."
            )

    def _ask(self, method: str, place: str, *, fine: tuple[int, ...], **more: Any) -> Any:
        """An answer that is one of `fine`; tried again where that may help."""
        answer = None
        for attempt in range(TRIES):
            try:
                answer = self._once(method, urljoin(self._to.base, place), **more)
            except _Broken as broken:
                if attempt == TRIES - 1:
                    raise _unreachable(self._to, broken) from broken
                _rest(attempt, None)
                continue
            if answer.status_code in fine:
                return answer
            if answer.status_code not in BUSY:
                break
            _rest(attempt, answer)
        raise _refused(self._to, f"{method} {place.partition('?')[0]}", answer)

    def _once(self, method: str, url: str, *, headers: Mapping[str, str] | None = None, data: bytes | None = None) -> Any:
        """One request, and where it is told who must ask, one more."""
        answer = self._request(method, url, headers, data)
        if answer.status_code == 401:
            self._authorization = self._introduce(answer)
            answer = self._request(method, url, headers, data)
        return answer

    def _request(self, method: str, url: str, headers: Mapping[str, str] | None, data: bytes | None) -> Any:
        import requests

        own = {"Authorization": self._authorization} if self._authorization and self._is_ours(url) else {}
        try:
            return self._session.request(method, url, headers={**(headers or {}), **own}, data=data, timeout=TIMEOUT_S)
        except requests.RequestException as error:
            raise _Broken(str(error)) from error

    def _is_ours(self, url: str) -> bool:
        """Uploads may go to another host (a bucket), which must not learn our credentials."""
        return url.startswith(self._to.base.partition("/v2/")[0] + "/")

    def _introduce(self, answer: Any) -> str:
        """The Authorization header that a 401 asks for: Basic, or a token from where it says (distribution's token specification)."""
        import requests
        from requests.utils import parse_dict_header

        kind, _, rest = answer.headers.get("WWW-Authenticate", "").partition(" ")
        known = credentials(self._to.registry)
        if kind.lower() == "basic" and known is not None:
            return f"Basic {base64.b64encode(':'.join(known).encode()).decode()}"
        if kind.lower() != "bearer":
            raise _refused(self._to, "log in", answer)
        asked: dict[str, str] = parse_dict_header(rest)  # type: ignore[no-untyped-call]
        scope = asked.get("scope") or f"repository:{self._to.repository}:pull,push"
        parameters = {key: value for key, value in {"service": asked.get("service"), "scope": scope}.items() if value}
        try:
            told = self._session.get(asked["realm"], params=parameters, auth=known, timeout=TIMEOUT_S)
        except requests.RequestException as error:
            raise _unreachable(self._to, error) from error
        if told.status_code != 200:
            raise _refused(self._to, "log in", told)
        document = told.json()
        return f"Bearer {document.get('token') or document['access_token']}"


class _Broken(Exception):
    """The connection broke, or never came about."""


class _Lost(Exception):
    """The registry has no such upload any more; done: what had been counted as sent."""

    def __init__(self, done: int) -> None:
        super().__init__()
        self.done = done


def _rest(attempt: int, answer: Any) -> None:
    told = answer.headers.get("Retry-After", "") if answer is not None else ""
    time.sleep(min(LONGEST_PAUSE_S, float(told) if told.isdigit() else PAUSE_S * 2**attempt))


def _unreachable(to: Target, error: Exception) -> Unreachable:
    advice = "See whether its address is right and it runs; then run the same command again: what is there is kept."
    return Unreachable(f"The registry {to.registry} does not answer.", advice=advice, details=str(error))


def _refused(to: Target, purpose: str, answer: Any) -> ProvisionError:
    words = _words(answer)
    if answer.status_code in (401, 403):
        advice = f"`docker login {to.registry}` with a user who may push there."
        return ToolFailed([to.registry, purpose], answer.status_code, words or "not allowed", advice=advice)
    if answer.status_code == TOO_MANY:
        return TimedOut(
            f"{to.registry} asks for fewer requests, {TRIES} times on end.", advice="Run the same command later.", details=words
        )
    return ToolFailed([to.registry, purpose], answer.status_code, words)


def _words(answer: Any) -> str:
    """The registry's own words."""
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        return "; ".join(_told(answer.json())) or str(answer.reason)
    return str(answer.text[:500] or answer.reason)


def _told(document: Mapping[str, Any]) -> Iterator[str]:
    for error in document.get("errors") or []:
        yield f"{error.get('code')}: {error.get('message')}"
