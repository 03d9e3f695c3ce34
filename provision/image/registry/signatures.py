"""Signatures and signed statements of an image in a registry, where cosign puts and looks for them: one
manifest under a tag that is made of the image's digest, each layer of which is signed.

Sources: cosign's SIGNATURE_SPEC.md and ATTESTATION_SPEC.md, in-toto's Statement v1, DSSE 1.0.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from provision.adapters import openssl
from provision.core.dataclass import frozen
from provision.core.errors import IntegrityError
from provision.core.schema import InvalidDocument, parse_document
from provision.image import manifest as manifests
from provision.image import oci_layout
from provision.image.oci_layout import CONFIG, MANIFEST, DescriptorRow, ImageManifest
from provision.image.registry.client import RegistryClient
from provision.image.registry.push import put_bytes, put_manifest
from provision.image.registry.reference import RegistryReference

SIGNATURE = "dev.cosignproject.cosign/signature"
PAYLOAD_TYPE = "cosign container image signature"
STATEMENT_TYPE = "application/vnd.in-toto+json"

Statement = Mapping[str, Any]


@frozen
class SignedKind:
    """Where one kind of signed documents is. suffix: of the tag. media_type: of each document."""

    suffix: str
    media_type: str


SIGNATURES = SignedKind(
    suffix=".sig", media_type="application/vnd.dev.cosign.simplesigning.v1+json"
)
ATTESTATIONS = SignedKind(suffix=".att", media_type="application/vnd.dsse.envelope.v1+json")


def sign_image(reference: RegistryReference, digest: str, key: openssl.SigningKey) -> None:
    """Sign an image that was pushed under this reference. Does nothing if this key has signed it."""
    payload = oci_layout.canonical(
        {
            "critical": {
                # With its tag, which the policies of podman and CRI-O compare; cosign ignores it.
                "identity": {"docker-reference": str(reference)},
                "image": {"docker-manifest-digest": digest},
                "type": PAYLOAD_TYPE,
            },
            "optional": None,
        }
    )
    with RegistryClient(reference) as client:
        if payload not in _signed_payloads(client, SIGNATURES, digest, key.public):
            signature = base64.b64encode(openssl.sign(payload, key)).decode()
            _add(client, SIGNATURES, digest, payload, {SIGNATURE: signature})


def attach_statement(
    reference: RegistryReference, digest: str, statement: Statement, key: openssl.SigningKey | None
) -> None:
    """Attach a statement about an image, signed if there is a key. Does nothing if it is there."""
    payload = oci_layout.canonical(statement)
    with RegistryClient(reference) as client:
        signatures = []
        if key is not None:
            if payload in _signed_payloads(client, ATTESTATIONS, digest, key.public):
                return
            signature = openssl.sign(_signed_bytes(STATEMENT_TYPE, payload), key)
            signatures = [{"keyid": "", "sig": base64.b64encode(signature).decode()}]
        envelope = {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": STATEMENT_TYPE,
            "signatures": signatures,
        }
        annotations = {SIGNATURE: "", "predicateType": statement["predicateType"]}
        _add(client, ATTESTATIONS, digest, oci_layout.canonical(envelope), annotations)


def verify_image(reference: RegistryReference, digests: Iterable[str], public_key: str) -> str:
    """Which of the digests is signed by this key: an image's own, or that of an index that names it.

    Raises IntegrityError if none is.
    """
    digests = tuple(digests)
    with RegistryClient(reference) as client:
        for digest in digests:
            for payload in _signed_payloads(client, SIGNATURES, digest, public_key):
                critical = _parse(payload, "cosign-payload").get("critical")
                if critical and critical["image"]["docker-manifest-digest"] == digest:
                    return digest
    raise IntegrityError(
        f"{reference} ({digests[0]}) has no signature by this key.",
        advice="Do not run it before you know who pushed it. Its owner signs it by `provision image "
        "push --sign KEY` or `cosign sign --new-bundle-format=false --key KEY`; cosign's bundles are not read.",
    )


def signed_statements(
    reference: RegistryReference, digest: str, public_key: str
) -> list[Statement]:
    """The statements about an image that this key has signed."""
    sha256 = digest.removeprefix("sha256:")
    statements: list[Statement] = []
    with RegistryClient(reference) as client:
        for payload in _signed_payloads(client, ATTESTATIONS, digest, public_key):
            statement = _parse(payload, "in-toto-statement")
            subjects = statement.get("subject", ())
            if any(subject["digest"].get("sha256") == sha256 for subject in subjects):
                statements.append(statement)
    return statements


def statement(
    reference: RegistryReference, digest: str, predicate_type: str, predicate: object
) -> Statement:
    """An in-toto statement about an image."""
    name = f"{reference.registry}/{reference.repository}"
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "predicate": predicate,
        "predicateType": predicate_type,
        "subject": [{"digest": {"sha256": digest.removeprefix("sha256:")}, "name": name}],
    }


def _parse(content: bytes, schema: str) -> dict[str, Any]:
    """A document that somebody attached; empty if it is not of this schema: it must not hide the
    others."""
    try:
        return dict(parse_document(content, schema))
    except InvalidDocument:
        return {}


def _signed_payloads(
    client: RegistryClient, kind: SignedKind, digest: str, public_key: str
) -> Iterator[bytes]:
    """The payloads of this kind that this key has signed."""
    for row in _rows(client, kind, digest):
        if row["mediaType"] != kind.media_type:
            continue
        content = client.blob(row["digest"])
        payload, signed = content, content
        signatures = [(row.get("annotations") or {}).get(SIGNATURE, "")]
        if kind is ATTESTATIONS:
            envelope = _parse(content, "dsse-envelope")
            payload = _decode(envelope.get("payload", ""))
            signed = _signed_bytes(envelope.get("payloadType", ""), payload)
            signatures = [signature["sig"] for signature in envelope.get("signatures", ())]
        if any(openssl.is_signature(_decode(text), signed, public_key) for text in signatures):
            yield payload


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except binascii.Error:
        return b""


def _signed_bytes(payload_type: str, payload: bytes) -> bytes:
    """What a signature in an envelope signs: DSSE's pre-authentication encoding."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def _rows(client: RegistryClient, kind: SignedKind, digest: str) -> list[DescriptorRow]:
    """The documents under an image's tag, each with its signature."""
    response = client.manifest(_tag(kind, digest), MANIFEST, expected=(200, 404))
    if response.status == 404:
        return []
    manifest: ImageManifest = manifests.parse(
        str(client.reference), response.content, "oci-manifest"
    )
    return manifest["layers"]


def _tag(kind: SignedKind, digest: str) -> str:
    return digest.replace(":", "-") + kind.suffix


def _add(
    client: RegistryClient,
    kind: SignedKind,
    digest: str,
    content: bytes,
    annotations: dict[str, str],
) -> None:
    """Add a document to those that others signed. If two do so at once, the later one wins; cosign
    has no better way."""
    layer = put_bytes(client, content, kind.media_type)
    rows = _rows(client, kind, digest)
    if any(row["digest"] == layer.digest for row in rows):
        return
    rows = [*rows, {**layer.row, "annotations": annotations}]
    diff_ids = [row["digest"] for row in rows]
    config = oci_layout.canonical(
        {"architecture": "", "os": "", "rootfs": {"diff_ids": diff_ids, "type": "layers"}}
    )
    manifest = oci_layout.canonical(
        {
            "config": put_bytes(client, config, CONFIG).row,
            "layers": rows,
            "mediaType": MANIFEST,
            "schemaVersion": 2,
        }
    )
    put_manifest(client, _tag(kind, digest), oci_layout.sha256_digest(manifest), manifest)
