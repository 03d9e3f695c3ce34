"""An image in a registry, without its layers."""

from __future__ import annotations

from provision.core.platforms import PLATFORM, Platform
from provision.image import manifest as manifests
from provision.image.manifest import Descriptor, ImageDocuments
from provision.image.oci_layout import INDEX_TYPES, MANIFEST_TYPES
from provision.image.registry.client import RegistryClient
from provision.image.registry.reference import RegistryReference

ACCEPT = ", ".join((*MANIFEST_TYPES, *INDEX_TYPES))


def find_remote(
    reference: RegistryReference, platform: Platform | None = PLATFORM
) -> ImageDocuments:
    """The image for a platform at a reference.

    platform: None: any, of one image. ToolMissing if there is none, InvalidSpec if it is not such an
    image, IntegrityError if its documents are invalid or do not match their digests.
    """
    with RegistryClient(reference) as client:

        def read(descriptor: Descriptor) -> bytes:
            kind = "blobs" if descriptor.media_type in manifests.CONFIG_TYPES else "manifests"
            path = f"{kind}/{descriptor.digest}"
            return client.request("GET", path, headers={"Accept": ACCEPT}, expected=(200,)).content

        response = client.manifest(reference.tag_or_digest, ACCEPT)
        content = response.content
        media_type = manifests.media_type(content, response.headers.get("Content-Type", ""))
        root = Descriptor.of(content, media_type)
        return manifests.read_image(str(reference), root, content, read, platform)
