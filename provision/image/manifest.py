"""The documents of an image that another tool or machine made, in a registry or on disk: checked
before we rely on their digests, sizes, media types and platform."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from provision.core.dataclass import frozen
from provision.core.errors import IntegrityError, InvalidSpec
from provision.core.json_text import parse_json
from provision.core.platforms import PLATFORM, Platform, image_platform
from provision.core.schema import InvalidDocument, parse_document, schema_error
from provision.image import oci_layout
from provision.image.oci_layout import (
    INDEX_TYPES,
    MANIFEST_TYPES,
    NAME,
    DescriptorRow,
    ImageConfig,
    ImageManifest,
    Index,
)

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
# Bytes of a document. The specification lets registries refuse manifests above 4 MiB.
DOCUMENT_LIMIT = 8 << 20
NESTING_LIMIT = 3  # indexes within indexes
CONTAINERD_NAME = "io.containerd.image.name"

_ADVICE = "Nothing of it was used. Copy or push the image again."


@frozen
class Descriptor:
    """A file of an image, by its digest."""

    digest: str
    size: int
    media_type: str
    annotations: dict[str, str]

    @property
    def row(self) -> DescriptorRow:
        """As manifests have it, without annotations."""
        return {"digest": self.digest, "mediaType": self.media_type, "size": self.size}

    @staticmethod
    def of(content: bytes, media_type: str) -> Descriptor:
        return Descriptor(
            digest=oci_layout.sha256_digest(content),
            size=len(content),
            media_type=media_type,
            annotations={},
        )


@frozen
class ImageDocuments:
    """An image: its documents, which match their digests, and the descriptors of its layers.

    source: where it is, for messages. name: in its index; empty if it has none there.
    """

    source: str
    name: str
    digest: str  # of the manifest
    root_digest: str  # of the index that led to it, or of the manifest
    media_type: str
    manifest: bytes
    config_digest: str
    config: ImageConfig
    layers: tuple[Descriptor, ...]

    @property
    def settings(self) -> Mapping[str, Any]:
        return self.config.get("config") or {}

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.settings.get("Labels") or {})

    @property
    def architecture(self) -> str:
        return self.config["architecture"]


def read_image(
    source: str,
    root: Descriptor,
    content: bytes,
    read: Callable[[Descriptor], bytes],
    platform: Platform | None = PLATFORM,
) -> ImageDocuments:
    """The image for a platform that a manifest or an index leads to.

    root, content: that document. read: another document. platform: None: any, of one image.
    InvalidSpec if there is no such image, IntegrityError if its documents are invalid or do not match their digests.
    """

    def read_verified(descriptor: Descriptor) -> bytes:
        if descriptor.size > DOCUMENT_LIMIT:
            raise IntegrityError(
                f"{source}: a document of {descriptor.size} bytes is too large.", advice=_ADVICE
            )
        document = read(descriptor)
        check_digest(source, descriptor.digest, document)
        return document

    image, name = root, ""
    for _ in range(NESTING_LIMIT):
        if image.media_type not in INDEX_TYPES:
            break
        index: Index = parse(source, content, "oci-index")
        image = platform_manifest(source, index, platform)
        # `docker save` writes only the tag as the other one.
        name = image.annotations.get(CONTAINERD_NAME) or image.annotations.get(NAME, name)
        content = read_verified(image)
    parse_descriptor(source, image.row, MANIFEST_TYPES)
    manifest: ImageManifest = parse(source, content, "oci-manifest")
    layers = tuple(parse_descriptor(source, row, LAYER_TYPES) for row in manifest["layers"])
    config = parse_descriptor(source, manifest["config"], CONFIG_TYPES)
    content_of_config = read_verified(config)
    return ImageDocuments(
        source=source,
        name=name,
        digest=image.digest,
        root_digest=root.digest,
        media_type=image.media_type,
        manifest=content,
        config_digest=config.digest,
        config=check_config(source, content_of_config, len(layers), platform),
        layers=layers,
    )


def check_digest(source: str, digest: str, content: bytes) -> None:
    actual = oci_layout.sha256_digest(content)
    if actual != digest:
        raise IntegrityError(
            f"{source}: the content of {digest} does not match its digest; it has {actual}.",
            advice=_ADVICE,
        )


def parse(source: str, content: bytes, schema: str) -> Any:
    """A document that fits its schema, or IntegrityError with the entry and field."""
    try:
        return parse_document(content, schema)
    except InvalidDocument as error:
        kind = schema.partition("-")[2]
        raise IntegrityError(f"{source}: invalid {kind}: {error}.", advice=_ADVICE) from error


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


def platform_manifest(
    source: str, index: Index, platform: Platform | None = PLATFORM
) -> Descriptor:
    """The entry for a platform (None: for any), or the only one without a platform. The plain one
    comes before those for newer processors (variants)."""
    expected = "any platform" if platform is None else image_platform(platform)
    ranks: dict[str, list[DescriptorRow]] = {}
    platforms = []
    for entry in index["manifests"]:
        row = entry.get("platform") or {}
        name = f"{row.get('os', '')}/{row.get('architecture', '')}"
        platforms.append(name)
        # BuildKit lists what it knows about an image as one for unknown/unknown.
        is_any = platform is None and name != "unknown/unknown"
        if is_any or name in (expected, "/"):
            rank = "any" if is_any else f"{name == '/'} {row.get('variant', '')}"
            ranks.setdefault(rank, []).append(entry)
    # An image with several names is one image, known by the first of them.
    best = {entry["digest"]: entry for entry in reversed(ranks[min(ranks)])} if ranks else {}
    if len(best) != 1:
        raise InvalidSpec(
            f"{source} holds {len(best)} images for {expected}, not one "
            f"(platforms: {', '.join(platforms) or 'none'}).",
            advice="Name the one that you want by its digest, or copy it into a layout of its own.",
        )
    (entry,) = best.values()
    return parse_descriptor(source, entry, (*MANIFEST_TYPES, *INDEX_TYPES))


def parse_descriptor(source: str, row: DescriptorRow, media_types: Sequence[str]) -> Descriptor:
    """A descriptor, checked because its fields become a file name and an amount of disk space.
    InvalidSpec for another media type."""
    error = schema_error(row, "oci-descriptor")
    if error is not None:
        raise IntegrityError(f"{source}: invalid descriptor: {error}.", advice=_ADVICE)
    if row["mediaType"] not in media_types:
        raise InvalidSpec(
            f"{source}: provision does not read the media type {row['mediaType'][:100]!r}.",
            advice=f"It reads {', '.join(sorted(media_types))}.",
        )
    return Descriptor(
        digest=row["digest"],
        size=int(row["size"]),
        media_type=row["mediaType"],
        annotations=dict(row.get("annotations") or {}),
    )


def check_config(
    source: str, content: bytes, layers: int, expected: Platform | None = PLATFORM
) -> ImageConfig:
    """The config. InvalidSpec for another platform than the expected, IntegrityError for a config that
    does not fit the manifest's number of layers."""
    config: ImageConfig = parse(source, content, "oci-config")
    platform = f"{config['os']}/{config['architecture']}"
    if expected is not None and platform != image_platform(expected):
        raise InvalidSpec(
            f"{source} is for {platform}, not for {image_platform(expected)}.",
            advice="Name one for that platform.",
        )
    diff_ids = config["rootfs"]["diff_ids"]
    if len(diff_ids) != layers:
        raise IntegrityError(
            f"{source}: its config names {len(diff_ids)} layers, its manifest {layers}.",
            advice=_ADVICE,
        )
    return config
