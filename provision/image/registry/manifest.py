"""A registry's documents about an image, checked before we rely on them: digests, sizes, media
types and platform."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from provision.core.errors import IntegrityError, InvalidSpec
from provision.core.json_text import parse_json
from provision.core.schema import schema_error
from provision.image import oci_layout
from provision.image.oci_layout import (
    INDEX_TYPES,
    MANIFEST_TYPES,
    Entry,
    ImageConfig,
    ImageManifest,
    Index,
)
from provision.image.registry.reference import RegistryReference

CONFIG_TYPES = (oci_layout.CONFIG, "application/vnd.docker.container.image.v1+json")
_DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar"
LAYER_TYPES = (
    oci_layout.LAYER,
    f"{oci_layout.LAYER}+gzip",
    f"{oci_layout.LAYER}+zstd",
    _DOCKER_LAYER,
    f"{_DOCKER_LAYER}.gzip",
    f"{_DOCKER_LAYER}.zstd",
)

_ADVICE = "It was discarded. Check that this is the right registry, and tell its operator."


@dataclass(frozen=True, kw_only=True)
class Descriptor:
    """A file in a registry, by its digest."""

    digest: str
    size: int
    media_type: str
    annotations: dict[str, str]

    @property
    def row(self) -> Entry:
        """As manifests have it, without annotations."""
        return {"digest": self.digest, "mediaType": self.media_type, "size": self.size}


@dataclass(frozen=True, kw_only=True)
class RemoteImage:
    """An image for linux/amd64 in a registry: its documents, which match their digests, and the
    descriptors of its layers."""

    reference: RegistryReference
    digest: str  # of the manifest
    media_type: str
    manifest: bytes
    config_digest: str
    config: bytes
    layers: tuple[Descriptor, ...]

    @property
    def labels(self) -> dict[str, str]:
        settings = oci_layout.parse_config(self.config).get("config") or {}
        return dict(settings.get("Labels") or {})

    @property
    def diff_ids(self) -> tuple[str, ...]:
        return tuple(oci_layout.parse_config(self.config)["rootfs"]["diff_ids"])

    @property
    def size(self) -> int:
        return sum(layer.size for layer in self.layers)


def check_digest(reference: RegistryReference, digest: str, content: bytes) -> None:
    actual = oci_layout.sha256_digest(content)
    if actual != digest:
        raise IntegrityError(
            f"{reference}: the registry sent something else for {digest} ({actual}).",
            advice=_ADVICE,
        )


def parse(reference: RegistryReference, content: bytes, schema: str) -> Any:
    """A document that fits its schema, or IntegrityError with the entry and field."""
    try:
        return oci_layout.parse_document(content, schema)
    except oci_layout.InvalidDocument as error:
        kind = schema.partition("-")[2]
        raise IntegrityError(f"{reference}: invalid {kind}: {error}.", advice=_ADVICE) from error


def media_type(content: bytes, content_type: str) -> str:
    """The media type of a manifest or an index: its own, or the one of the HTTP header."""
    header = content_type.partition(";")[0].strip()
    try:
        document = parse_json(content)
    except ValueError:
        return header
    if isinstance(document, dict) and isinstance(document.get("mediaType"), str):
        return str(document["mediaType"])
    return header


def amd64_manifest(reference: RegistryReference, index: Index) -> Descriptor:
    """The entry for linux/amd64; the plain one before those for newer processors (variants)."""
    matching: list[tuple[str, Entry]] = []
    platforms = []
    for entry in index["manifests"]:
        platform = entry.get("platform") or {}
        name = f"{platform.get('os')}/{platform.get('architecture')}"
        platforms.append(name)
        if name == oci_layout.PLATFORM:
            matching.append((platform.get("variant", ""), entry))
    matching.sort(key=lambda variant_and_entry: variant_and_entry[0])
    is_ambiguous = len(matching) > 1 and matching[0][0] == matching[1][0]
    if not matching or is_ambiguous:
        raise InvalidSpec(
            f"{reference} holds {len(matching)} images for linux/amd64, not one "
            f"(platforms: {', '.join(platforms) or 'none'}).",
            advice="Name the one that you want by its digest.",
        )
    return parse_descriptor(reference, matching[0][1], (*MANIFEST_TYPES, *INDEX_TYPES))


def parse_descriptor(
    reference: RegistryReference, row: Entry, media_types: Sequence[str]
) -> Descriptor:
    """A descriptor, checked because its fields become a file name and an amount of disk space.
    InvalidSpec for another media type."""
    error = schema_error(row, "oci-descriptor")
    if error is not None:
        raise IntegrityError(f"{reference}: invalid descriptor: {error}.", advice=_ADVICE)
    if row["mediaType"] not in media_types:
        raise InvalidSpec(
            f"{reference}: provision does not read the media type {row['mediaType'][:100]!r}.",
            advice=f"It reads {', '.join(sorted(media_types))}.",
        )
    return Descriptor(
        digest=row["digest"],
        size=int(row["size"]),
        media_type=row["mediaType"],
        annotations=dict(row.get("annotations") or {}),
    )


def image_descriptors(
    reference: RegistryReference, content: bytes
) -> tuple[Descriptor, tuple[Descriptor, ...]]:
    """The config and the layers that a manifest names."""
    manifest: ImageManifest = parse(reference, content, "oci-manifest")
    layers = tuple(parse_descriptor(reference, row, LAYER_TYPES) for row in manifest["layers"])
    return parse_descriptor(reference, manifest["config"], CONFIG_TYPES), layers


def check_config(reference: RegistryReference, content: bytes, layers: int) -> None:
    """InvalidSpec for another platform, IntegrityError for a config that does not fit the
    manifest's number of layers."""
    config: ImageConfig = parse(reference, content, "oci-config")
    platform = f"{config['os']}/{config['architecture']}"
    if platform != oci_layout.PLATFORM:
        raise InvalidSpec(
            f"{reference} is for {platform}, but provision reads images for linux/amd64.",
            advice="Name one for that platform.",
        )
    diff_ids = config["rootfs"]["diff_ids"]
    if len(diff_ids) != layers:
        raise IntegrityError(
            f"{reference}: its config names {len(diff_ids)} layers, its manifest {layers}.",
            advice=_ADVICE,
        )
