"""Pushes an image into a registry: first the blobs that it lacks, in chunks, then the manifest,
which makes the image visible."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import IO
from urllib.parse import urljoin

from provision.core.dataclass import frozen
from provision.core.errors import IntegrityError, ToolFailed, Unreachable
from provision.core.types import Image, Progress
from provision.image import layer_cache, oci_layout
from provision.image.manifest import Descriptor, ImageDocuments
from provision.image.registry.client import (
    RETRY_STATUSES,
    TRIES,
    ConnectionFailed,
    RegistryClient,
    RegistryResponse,
    read_response,
    refusal_error,
    registry_backoff,
)
from provision.image.registry.reference import RegistryReference

# Sent again when a connection breaks. Registries behind proxies often accept no more than
# 100 MB at a time.
UPLOAD_CHUNK = 32 << 20
NO_CONTENT = {"Content-Length": "0"}

OpenFile = Callable[[], IO[bytes]]


@frozen
class PushResult:
    """reference: by digest, which never means other bytes. sent, present: bytes of layers and
    documents. attached: the kinds of documents attached to the image there."""

    reference: str
    tag: str
    sent: int
    present: int
    attached: tuple[str, ...] = ()


@frozen
class IndexResult:
    """An index in a registry. reference: by digest. platforms: with the digest of each image."""

    reference: str
    tag: str
    digest: str
    platforms: Mapping[str, str]


def push_image(image: Image, reference: RegistryReference, progress: Progress) -> PushResult:
    """Send what the registry lacks, then the manifest.

    Unreachable if the registry does not respond, ToolFailed if it refuses, IntegrityError if a layer
    here does not match its digest; each after TRIES tries where another could help.
    """
    oci_layout.read_image(image)
    digests = [*(layer.digest for layer in image.layers), image.image_id]
    sizes = {digest: oci_layout.blob(image.layout, digest).stat().st_size for digest in digests}
    total = sum(sizes.values())
    sent = 0
    title = f"pushing to {reference.registry}"
    with RegistryClient(reference) as client, progress.meter(title, total) as meter:
        for digest, size in sizes.items():
            path = oci_layout.blob(image.layout, digest)
            try:
                was_present = put_blob(client, digest, size, lambda: path.open("rb"), meter.advance)  # noqa: B023 - runs at once
            except ToolFailed as error:
                # A registry refuses a blob that does not match its digest. Only now do we check
                # whether it is corrupt here.
                if error.status == 400 and layer_cache.quarantine_corrupt(
                    image.layout, [digest], thorough=True
                ):
                    raise oci_layout.corrupt_blob(path) from None
                raise
            if not was_present:
                sent += size
        content = oci_layout.blob(image.layout, image.manifest_digest).read_bytes()
        put_manifest(client, reference.tag, image.manifest_digest, content)
    return PushResult(
        reference=reference.with_digest(image.manifest_digest),
        tag=str(reference),
        sent=sent,
        present=total - sent,
    )


def require_registry(reference: RegistryReference) -> None:
    """Raise, before minutes of compression, what `push_image` would raise of a registry that does not
    respond, or that does not know this user."""
    with RegistryClient(reference) as client:
        client.request("HEAD", f"manifests/{reference.tag}", expected=(200, 404))


def push_index(images: Sequence[ImageDocuments], reference: RegistryReference) -> IndexResult:
    """Send an index of images that are in its repository. Annotations are the labels that they share.

    The order of the images does not change its digest.
    """
    images = sorted(images, key=lambda image: image.architecture)
    entries = [
        {
            "digest": image.digest,
            "mediaType": image.media_type,
            "platform": {"architecture": image.architecture, "os": "linux"},
            "size": len(image.manifest),
        }
        for image in images
    ]
    shared_labels = set.intersection(*(set(image.labels.items()) for image in images))
    index = {
        "annotations": dict(shared_labels),
        "manifests": entries,
        "mediaType": oci_layout.INDEX,
        "schemaVersion": 2,
    }
    content = oci_layout.canonical(index)
    digest = oci_layout.sha256_digest(content)
    with RegistryClient(reference) as client:
        put_manifest(client, reference.tag, digest, content, oci_layout.INDEX)
    return IndexResult(
        reference=reference.with_digest(digest),
        tag=str(reference),
        digest=digest,
        platforms={f"linux/{image.architecture}": image.digest for image in images},
    )


def put_blob(
    client: RegistryClient,
    digest: str,
    size: int,
    open_file: OpenFile,
    advance: Callable[[int], None],
) -> bool:
    """Upload a blob in chunks unless the registry has it; returns whether it had it.

    After a failure that another try may help, it begins again, TRIES times at most.
    """
    if _has_blob(client, digest):
        advance(size)
        return True
    backoff = registry_backoff()
    while not backoff.is_exhausted:
        begun = client.request("POST", "blobs/uploads/", headers=NO_CONTENT, expected=(202,))
        url, sent = _upload_url(client, begun), 0
        with open_file() as file:
            while chunk := file.read(UPLOAD_CHUNK):
                response = _send_chunk(client, url, sent, chunk)
                if response is None or response.status in (*RETRY_STATUSES, 404, 416):
                    break
                if response.status != 202:
                    raise refusal_error(client.reference, f"send {digest[:19]}", response)
                url = _upload_url(client, response)
                sent += len(chunk)
                advance(len(chunk))
            else:
                if sent != size:
                    raise IntegrityError(
                        f"{digest} became shorter while it was sent.",
                        advice="Run `provision image build` to make it again.",
                    )
                end = f"{url}{'&' if '?' in url else '?'}digest={digest}"
                closed = client.request("PUT", end, headers=NO_CONTENT, expected=(201, 404))
                # 404 may also mean that an earlier try succeeded, and its response was lost.
                if closed.status == 201 or _has_blob(client, digest):
                    return False
        advance(-sent)
        backoff.count_failure()
        backoff.wait()
    raise Unreachable(
        f"{client.reference.registry} did not take {digest[:19]}, {TRIES} times in a row.",
        advice="Run the same command again: it sends what is missing.",
    )


def _has_blob(client: RegistryClient, digest: str) -> bool:
    return client.request("HEAD", f"blobs/{digest}", expected=(200, 404)).status == 200


def put_bytes(client: RegistryClient, content: bytes, media_type: str) -> Descriptor:
    """Upload a small blob unless the registry has it."""
    blob = Descriptor.of(content, media_type)
    put_blob(client, blob.digest, blob.size, lambda: io.BytesIO(content), lambda _: None)
    return blob


def put_manifest(
    client: RegistryClient,
    tag_or_digest: str,
    digest: str,
    content: bytes,
    media_type: str = oci_layout.MANIFEST,
) -> RegistryResponse:
    response = client.request(
        "PUT",
        f"manifests/{tag_or_digest}",
        headers={"Content-Type": media_type},
        data=content,
        expected=(201,),
    )
    stored_digest = response.headers.get("Docker-Content-Digest", digest)
    if stored_digest != digest:
        raise IntegrityError(
            f"{client.reference} has {stored_digest} now, not {digest}.",
            advice="Push again; if the error returns, tell the registry's operator.",
        )
    return response


def _upload_url(client: RegistryClient, response: RegistryResponse) -> str:
    """Where to continue an upload."""
    if "Location" not in response.headers:
        raise refusal_error(client.reference, "continue an upload", response)
    return urljoin(response.url, response.headers["Location"])


def _send_chunk(
    client: RegistryClient, url: str, begin: int, chunk: bytes
) -> RegistryResponse | None:
    """The registry's response, or None if the connection broke."""
    headers = {
        "Content-Range": f"{begin}-{begin + len(chunk) - 1}",
        "Content-Type": "application/octet-stream",
    }
    try:
        with client.stream("PATCH", url, headers=headers, data=chunk) as response:
            return read_response(client.reference, response)
    except ConnectionFailed:
        return None
