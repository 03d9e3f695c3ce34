"""Documents attached to an image's digest in a registry: OCI 1.1 referrers, and the tag
`sha256-<digest>` for registries without an API for them (distribution specification 1.1, "Referrers
Tag Schema")."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import urljoin

from provision.core.errors import IntegrityError, InvalidSpec
from provision.core.types import Image
from provision.image import manifest as manifests
from provision.image import oci_layout
from provision.image.manifest import Descriptor
from provision.image.oci_layout import MANIFEST_TYPES, DescriptorRow, ImageManifest, Index
from provision.image.registry.client import RegistryClient, RegistryResponse
from provision.image.registry.push import put_bytes, put_manifest
from provision.image.registry.reference import RegistryReference

EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
EMPTY = b"{}"
CONTENT_LIMIT = 64 << 20
PAGE_LIMIT = 100  # of a list of referrers, in case a registry never ends it


def attach_referrer(
    reference: RegistryReference,
    image: Image,
    artifact_type: str,
    media_type: str,
    content: bytes,
    annotations: Mapping[str, str] | None = None,
) -> Descriptor:
    """Push `content` as a referrer of an image that was pushed there: a manifest that names the
    image as its subject. The same content gives the same referrer."""
    image_manifest = oci_layout.blob(image.layout, image.manifest_digest).read_bytes()
    subject = Descriptor.of(image_manifest, oci_layout.MANIFEST)
    with RegistryClient(reference) as client:
        empty = put_bytes(client, EMPTY, EMPTY_TYPE)
        blob = put_bytes(client, content, media_type)
        manifest = oci_layout.canonical(
            {
                "annotations": dict(annotations or {}),
                "artifactType": artifact_type,
                "config": empty.row,
                "layers": [blob.row],
                "mediaType": oci_layout.MANIFEST,
                "schemaVersion": 2,
                "subject": subject.row,
            }
        )
        referrer = Descriptor.of(manifest, oci_layout.MANIFEST, annotations)
        response = put_manifest(client, referrer.digest, referrer.digest, manifest)
        if "OCI-Subject" not in response.headers:  # a registry without an index of subjects
            _add_to_fallback_index(client, subject, referrer, artifact_type)
    return referrer


def _add_to_fallback_index(
    client: RegistryClient, subject: Descriptor, referrer: Descriptor, artifact_type: str
) -> None:
    """Add to the index under the fallback tag. If two do so at once, the later one wins; the
    specification has no better way."""
    entries = [
        entry
        for entry in _fallback_entries(client, subject.digest)
        if entry.get("digest") != referrer.digest
    ]
    entries.append(
        {**referrer.row, "annotations": referrer.annotations, "artifactType": artifact_type}
    )
    content = oci_layout.canonical(
        {"manifests": entries, "mediaType": oci_layout.INDEX, "schemaVersion": 2}
    )
    put_manifest(
        client,
        _fallback_tag(subject.digest),
        oci_layout.sha256_digest(content),
        content,
        oci_layout.INDEX,
    )


def list_referrers(
    reference: RegistryReference,
    digest: str,
    artifact_type: str,
    warn: Callable[[str], None],
) -> list[Descriptor]:
    """The referrers of an image that have this artifact type. Skips invalid entries, with a
    warning."""
    with RegistryClient(reference) as client:
        entries = _listed_entries(client, digest)
        if entries is None:
            entries = _fallback_entries(client, digest)
    referrers = []
    for entry in entries:
        if entry.get("artifactType") != artifact_type:
            continue
        try:
            referrers.append(manifests.parse_descriptor(str(reference), entry, MANIFEST_TYPES))
        except (IntegrityError, InvalidSpec) as error:
            warn(f"skipping an invalid attachment of {digest}: {error.message}")
    return referrers


def _listed_entries(client: RegistryClient, digest: str) -> list[DescriptorRow] | None:
    """All pages, which Link headers connect (RFC 5988); None if the registry has no such API."""
    from requests.utils import parse_header_links

    entries: list[DescriptorRow] = []
    path = f"referrers/{digest}"
    for _ in range(PAGE_LIMIT):
        response = client.request(
            "GET", path, expected=(200, 404, 405), headers={"Accept": oci_layout.INDEX}
        )
        if response.status != 200:
            return entries or None
        entries += _index_entries(client, response)
        links = parse_header_links(response.headers.get("Link", ""))
        next_urls = [link["url"] for link in links if link.get("rel") == "next"]
        if not next_urls:
            break
        path = urljoin(response.url, next_urls[0])
    return entries


def _fallback_entries(client: RegistryClient, digest: str) -> list[DescriptorRow]:
    response = client.request(
        "GET",
        f"manifests/{_fallback_tag(digest)}",
        expected=(200, 404),
        headers={"Accept": oci_layout.INDEX},
    )
    return _index_entries(client, response) if response.status == 200 else []


def _index_entries(client: RegistryClient, response: RegistryResponse) -> list[DescriptorRow]:
    """Each entry is checked where it is used: an invalid one must not hide the rest."""
    index: Index = manifests.parse(str(client.reference), response.content, "oci-referrers")
    return [entry for entry in index["manifests"] if isinstance(entry, dict)]


def referrer_content(
    reference: RegistryReference, digest: str, referrer: Descriptor, media_type: str
) -> bytes:
    """The content of a referrer. IntegrityError if it does not match its digests, or belongs to
    another image."""
    with RegistryClient(reference) as client:
        response = client.request(
            "GET",
            f"manifests/{referrer.digest}",
            expected=(200,),
            headers={"Accept": oci_layout.MANIFEST},
        )
        manifests.check_digest(str(reference), referrer.digest, response.content)
        manifest: ImageManifest = manifests.parse(str(reference), response.content, "oci-manifest")
        subject = manifest.get("subject")
        if subject is None or subject["digest"] != digest or len(manifest["layers"]) != 1:
            raise IntegrityError(
                f"{reference}: {referrer.digest} is not an attachment of {digest}.",
                advice="Tell the person who attached it.",
            )
        layer = manifests.parse_descriptor(str(reference), manifest["layers"][0], (media_type,))
        content = client.request(
            "GET", f"blobs/{layer.digest}", expected=(200,), limit=CONTENT_LIMIT
        ).content
    manifests.check_digest(str(reference), layer.digest, content)
    return content


def _fallback_tag(digest: str) -> str:
    return digest.replace(":", "-")
