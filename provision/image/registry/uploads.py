"""An image into a registry: the blobs that it lacks, in pieces, then the manifest, which makes the image visible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import IO
from urllib.parse import urljoin

from provision.core.errors import IntegrityError, ToolFailed, Unreachable
from provision.core.types import Image, Progress
from provision.image import layer_cache, oci_layout
from provision.image.registry.client import Registry
from provision.image.registry.reference import Target
from provision.image.registry.responses import (
    BUSY,
    TRIES,
    Answer,
    Broken,
    refused,
    registry_backoff,
    retry_after,
)

# Pieces of an upload: what is sent again when a connection breaks. Registries behind proxies often take no more than 100 MB at a time.
CHUNK = 32 << 20
EMPTY = {"Content-Length": "0"}

Open = Callable[[], IO[bytes]]


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """reference: by digest, which names these bytes for good. Sizes in bytes, of layers and documents.

    attached: what was said of it there."""

    reference: str
    tag: str
    sent: int
    present: int
    attached: tuple[str, ...] = ()


def push(image: Image, to: Target, progress: Progress) -> Pushed:
    """Send what the registry lacks, then the manifest.

    Unreachable where the registry does not answer, ToolFailed where it refuses, IntegrityError where a layer here is not what its
    digest says; each after TRIES where trying again could help.
    """
    written = oci_layout.read(image.layout)
    if written is None or written.manifest_digest != image.manifest_digest:
        raise IntegrityError(
            f"{image.layout} is not the whole image any more.",
            advice="`provision image build` makes it again.",
        )
    blobs = [*(layer.digest for layer in image.layers), image.image_id]
    sizes = {digest: oci_layout.blob(image.layout, digest).stat().st_size for digest in blobs}
    sent = 0
    with (
        Registry(to) as registry,
        progress.meter(f"pushing to {to.registry}", sum(sizes.values())) as meter,
    ):
        for digest, size in sizes.items():
            path = oci_layout.blob(image.layout, digest)
            try:
                there = put_blob(registry, digest, size, lambda: path.open("rb"), meter.advance)  # noqa: B023 - runs at once
            except ToolFailed as error:
                # A registry refuses what is not its digest. Whether it was damaged here is looked at only now.
                if error.status == 400 and layer_cache.damaged(
                    image.layout, [digest], thorough=True
                ):
                    raise layer_cache.broken(path) from None
                raise
            sent += 0 if there else size
        put_manifest(
            registry,
            to.tag,
            image.manifest_digest,
            oci_layout.blob(image.layout, image.manifest_digest).read_bytes(),
        )
    return Pushed(
        reference=to.at(image.manifest_digest),
        tag=str(to),
        sent=sent,
        present=sum(sizes.values()) - sent,
    )


def put_blob(
    registry: Registry, digest: str, size: int, open_it: Open, advance: Callable[[int], None]
) -> bool:
    """Whether it was there already."""
    there = registry.ask("HEAD", f"blobs/{digest}", fine=(200, 404)).status == 200
    if there:
        advance(size)
    else:
        _upload(registry, digest, size, open_it, advance)
    return there


def put_manifest(
    registry: Registry,
    reference: str,
    digest: str,
    content: bytes,
    media_type: str = oci_layout.MANIFEST,
) -> Answer:
    answer = registry.ask(
        "PUT",
        f"manifests/{reference}",
        headers={"Content-Type": media_type},
        data=content,
        fine=(201,),
    )
    theirs = answer.headers.get("Docker-Content-Digest", digest)
    if theirs != digest:
        raise IntegrityError(
            f"{registry.to} has {theirs} now, not {digest}.",
            advice="Push again; if it stays so, tell the registry's keeper.",
        )
    return answer


def _upload(
    registry: Registry, digest: str, size: int, open_it: Open, advance: Callable[[int], None]
) -> None:
    """In pieces. After a break the registry says how far it came; one that has forgotten the upload gets it anew."""
    backoff = registry_backoff()
    while not backoff.is_exhausted:
        try:
            with open_it() as file:
                _send_all(registry, _begin(registry), file, digest, size, advance)
            return
        except _Lost as lost:
            advance(-lost.done)
            backoff.count_failure()
            backoff.wait()
    raise Unreachable(
        f"{registry.to.registry} lost the upload of {digest[:19]} {TRIES} times.",
        advice="Run the same command again: what is there is kept.",
    )


def _begin(registry: Registry) -> str:
    answer = registry.ask("POST", "blobs/uploads/", headers=EMPTY, fine=(202,))
    return _where_on(registry, answer)


def _where_on(registry: Registry, answer: Answer) -> str:
    if "Location" not in answer.headers:
        raise refused(registry.to, "say where an upload goes on", answer)
    return urljoin(answer.url, answer.headers["Location"])


def _send_all(
    registry: Registry,
    place: str,
    file: IO[bytes],
    digest: str,
    size: int,
    advance: Callable[[int], None],
) -> None:
    done, furthest = 0, 0
    backoff = registry_backoff()
    while done < size:
        file.seek(done)
        piece = file.read(CHUNK)
        if not piece:
            raise IntegrityError(
                f"{digest} became shorter while it was sent.",
                advice="`provision image build` makes it again.",
            )
        answer = _send_piece(registry, place, done, piece)
        if answer is not None and answer.status == 202:
            place, come = _where_on(registry, answer), done + len(piece)
        elif answer is not None and answer.status not in (*BUSY, 404, 416):
            raise refused(registry.to, f"send {digest[:19]}", answer)
        else:
            backoff.count_failure()
            if backoff.is_exhausted:
                raise _Lost(done)
            backoff.wait(retry_after(answer))
            place, come = _how_far(registry, place, done)
        if come > furthest:  # a registry may forget what it had: only new bytes are progress
            furthest = come
            backoff.reset()
        advance(come - done)
        done = come
    parameters = "&" if "?" in place else "?"
    answer = registry.ask(
        "PUT", f"{place}{parameters}digest={digest}", headers=EMPTY, fine=(201, 404)
    )
    if (
        answer.status == 404
        and registry.ask("HEAD", f"blobs/{digest}", fine=(200, 404)).status == 404
    ):
        raise _Lost(done)  # else it had been taken, and the answer that said so was lost


def _send_piece(registry: Registry, place: str, done: int, piece: bytes) -> Answer | None:
    headers = {
        "Content-Range": f"{done}-{done + len(piece) - 1}",
        "Content-Type": "application/octet-stream",
    }
    try:
        return registry.once("PATCH", place, headers=headers, data=piece)
    except Broken:
        return None


def _how_far(registry: Registry, place: str, done: int) -> tuple[str, int]:
    """Where the upload goes on, and how many bytes the registry has (`Range: 0-99` are 100)."""
    answer = registry.ask("GET", place, fine=(204, 404))
    if answer.status == 404:
        raise _Lost(done)
    last = answer.headers.get("Range", "").partition("-")[2]
    come = (
        int(last) + 1 if last.isdecimal() and last != "0" else 0
    )  # distribution says 0-0 of nothing and of one byte alike
    return urljoin(answer.url, answer.headers.get("Location", place)), come


class _Lost(Exception):
    """The registry has no such upload any more; done: what had been counted as sent."""

    def __init__(self, done: int) -> None:
        super().__init__()
        self.done = done
