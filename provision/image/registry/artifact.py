"""Files that a registry keeps as an artifact, as `oras push` makes it: one layer for each file, named by
the annotation org.opencontainers.image.title."""

from __future__ import annotations

from provision.image import manifest as manifests
from provision.image.oci_layout import MANIFEST, ImageManifest
from provision.image.registry.client import RegistryClient
from provision.image.registry.reference import RegistryReference

TITLE = "org.opencontainers.image.title"


def artifact_files(reference: RegistryReference) -> dict[str, bytes]:
    """The files of an artifact by name. Raises IntegrityError for bytes that do not match their
    digests, or that of the reference."""
    files = {}
    with RegistryClient(reference) as client:
        response = client.manifest(reference.tag_or_digest, MANIFEST)
        manifest: ImageManifest = manifests.parse(str(reference), response.content, "oci-manifest")
        for row in manifest["layers"]:
            layer = manifests.parse_descriptor(str(reference), row, (row.get("mediaType", ""),))
            files[layer.annotations.get(TITLE, layer.digest)] = client.blob(layer.digest)
    return files
