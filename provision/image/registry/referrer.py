"""What is said of an image beside it, attached to its digest: OCI 1.1 referrers, and the tag `sha256-<digest>` where a registry has no
API for them (distribution specification 1.1, "Referrers Tag Schema")."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin

from provision.core.errors import IntegrityError, InvalidSpec
from provision.core.types import Image
from provision.image import oci_layout
from provision.image.registry import manifest as documents
from provision.image.registry.client import Registry
from provision.image.registry.manifest import Part
from provision.image.registry.reference import Target
from provision.image.registry.responses import Answer
from provision.image.registry.uploads import put_blob, put_manifest

EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
EMPTY = b"{}"
CONTENT_LIMIT = 64 << 20
PAGES = 100  # of a list of referrers: a registry that goes on for ever is not followed


@dataclass(frozen=True, kw_only=True)
class Referrer:
    """A manifest that names an image as its subject. artifact_type: what kind of thing it says."""

    digest: str
    size: int
    artifact_type: str
    annotations: Mapping[str, str]


def attach(
    to: Target,
    image: Image,
    artifact_type: str,
    media_type: str,
    content: bytes,
    annotations: Mapping[str, str] | None = None,
) -> Referrer:
    """Push `content` as a referrer of an image that was sent there. The same content again is the same referrer."""
    subject = _part(
        oci_layout.blob(image.layout, image.manifest_digest).read_bytes(), oci_layout.MANIFEST
    )
    blob, empty = _part(content, media_type), _part(EMPTY, EMPTY_TYPE)
    own = dict(annotations or {})
    manifest = oci_layout.canonical(
        {
            "annotations": own,
            "artifactType": artifact_type,
            "config": empty.row,
            "layers": [blob.row],
            "mediaType": oci_layout.MANIFEST,
            "schemaVersion": 2,
            "subject": subject.row,
        }
    )
    made = Referrer(
        digest=_digest(manifest), size=len(manifest), artifact_type=artifact_type, annotations=own
    )
    with Registry(to) as registry:
        for part, text in ((empty, EMPTY), (blob, content)):
            put_blob(registry, part.digest, part.size, lambda: io.BytesIO(text), lambda _: None)  # noqa: B023 - runs at once
        answer = put_manifest(registry, made.digest, made.digest, manifest)
        if "OCI-Subject" not in answer.headers:  # a registry that does not index subjects
            _list(registry, subject, made)
    return made


def _list(registry: Registry, subject: Part, made: Referrer) -> None:
    """Add to the index under the fallback tag. Two who do so at once: the later one wins, which the specification leaves open too."""
    rows = [row for row in _fallback(registry, subject.digest) if row.get("digest") != made.digest]
    own = {
        "annotations": dict(made.annotations),
        "artifactType": made.artifact_type,
        "digest": made.digest,
    }
    rows.append({**own, "mediaType": oci_layout.MANIFEST, "size": made.size})
    content = oci_layout.canonical(
        {"manifests": rows, "mediaType": oci_layout.INDEX, "schemaVersion": 2}
    )
    put_manifest(
        registry, _fallback_tag(subject.digest), _digest(content), content, oci_layout.INDEX
    )


def referrers(
    at: Target, digest: str, artifact_type: str, warn: Callable[[str], None]
) -> list[Referrer]:
    """What of that kind is attached to an image, as the registry lists it; what is no descriptor is said through `warn`."""
    with Registry(at) as registry:
        rows = _listed(registry, digest)
        found = _fallback(registry, digest) if rows is None else rows
    referrers = []
    for row in found:
        if row.get("artifactType") == artifact_type:
            try:
                referrers.append(_referrer(at, row))
            except (IntegrityError, InvalidSpec) as error:
                warn(f"something that is attached to {digest} is left out: {error.message}")
    return referrers


def _listed(registry: Registry, digest: str) -> list[dict[str, Any]] | None:
    """Page by page, which Link names (RFC 5988); None where the registry has no such API."""
    from requests.utils import parse_header_links

    rows: list[dict[str, Any]] = []
    place = f"referrers/{digest}"
    for _ in range(PAGES):
        answer = registry.ask(
            "GET", place, fine=(200, 404, 405), headers={"Accept": oci_layout.INDEX}
        )
        if answer.status != 200:
            return rows or None
        rows += _rows(registry, answer)
        following = [
            link["url"]
            for link in parse_header_links(answer.headers.get("Link", ""))
            if link.get("rel") == "next"
        ]
        if not following:
            break
        place = urljoin(answer.url, following[0])
    return rows


def _referrer(at: Target, row: dict[str, Any]) -> Referrer:
    part = documents.part(at, row, documents.MANIFESTS)
    return Referrer(
        digest=part.digest,
        size=part.size,
        artifact_type=str(row["artifactType"]),
        annotations=part.annotations,
    )


def _fallback(registry: Registry, digest: str) -> list[dict[str, Any]]:
    answer = registry.ask(
        "GET",
        f"manifests/{_fallback_tag(digest)}",
        fine=(200, 404),
        headers={"Accept": oci_layout.INDEX},
    )
    return _rows(registry, answer) if answer.status == 200 else []


def _rows(registry: Registry, answer: Answer) -> list[dict[str, Any]]:
    rows = documents.parsed(registry.to, answer.content).get("manifests")
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def content(at: Target, digest: str, referrer: Referrer, media_type: str) -> bytes:
    """What a referrer says. IntegrityError where it is not true to its digests, or is of another image."""
    with Registry(at) as registry:
        answer = registry.ask(
            "GET",
            f"manifests/{referrer.digest}",
            fine=(200,),
            headers={"Accept": oci_layout.MANIFEST},
        )
        documents.check_digest(at, referrer.digest, answer.content)
        manifest = documents.parsed(at, answer.content)
        subject, layers = manifest.get("subject"), manifest.get("layers")
        if (
            not isinstance(subject, dict)
            or subject.get("digest") != digest
            or not isinstance(layers, list)
            or len(layers) != 1
        ):
            raise IntegrityError(
                f"{at}: {referrer.digest} says nothing of {digest}.",
                advice="Tell whoever attached it.",
            )
        part = documents.part(at, layers[0], (media_type,))
        said = registry.ask("GET", f"blobs/{part.digest}", fine=(200,), limit=CONTENT_LIMIT).content
    documents.check_digest(at, part.digest, said)
    return said


def _fallback_tag(digest: str) -> str:
    return digest.replace(":", "-")


def _part(content: bytes, media_type: str) -> Part:
    return Part(digest=_digest(content), size=len(content), media_type=media_type, annotations={})


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
