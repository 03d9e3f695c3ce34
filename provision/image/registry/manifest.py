"""What a registry says an image is, judged before anything of it is believed: digests, sizes, kinds of files, platform."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from provision.core.errors import IntegrityError, InvalidSpec
from provision.image import oci_layout
from provision.image.registry.reference import DIGEST, Target

DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
LISTS = (oci_layout.INDEX, DOCKER_LIST)
MANIFESTS = (oci_layout.MANIFEST, DOCKER_MANIFEST)
CONFIGS = (oci_layout.CONFIG, "application/vnd.docker.container.image.v1+json")
_DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar"
LAYERS = (
    oci_layout.LAYER,
    f"{oci_layout.LAYER}+gzip",
    f"{oci_layout.LAYER}+zstd",
    _DOCKER_LAYER,
    f"{_DOCKER_LAYER}.gzip",
    f"{_DOCKER_LAYER}.zstd",
)

_ADVICE = "Nothing of it was kept; see whether the registry is the right one, and tell its keeper."


@dataclass(frozen=True, kw_only=True)
class Part:
    """A descriptor: a file by its digest."""

    digest: str
    size: int
    media_type: str
    annotations: dict[str, str]

    @property
    def row(self) -> dict[str, Any]:
        return {"digest": self.digest, "mediaType": self.media_type, "size": self.size}


@dataclass(frozen=True, kw_only=True)
class Remote:
    """An image in a registry for linux/amd64: its documents, true to their digests, and what its layers are."""

    at: Target
    digest: str  # of the manifest
    media_type: str
    manifest: bytes
    config_digest: str
    config: bytes
    layers: tuple[Part, ...]

    @property
    def labels(self) -> dict[str, str]:
        return dict((json.loads(self.config).get("config") or {}).get("Labels") or {})

    @property
    def diff_ids(self) -> tuple[str, ...]:
        return tuple(json.loads(self.config)["rootfs"]["diff_ids"])

    @property
    def size(self) -> int:
        return sum(layer.size for layer in self.layers)


def check_digest(at: Target, digest: str, content: bytes) -> None:
    found = f"sha256:{hashlib.sha256(content).hexdigest()}"
    if found != digest:
        raise IntegrityError(f"{at}: {digest} is not what was sent ({found}).", advice=_ADVICE)


def parsed(at: Target, content: bytes) -> dict[str, Any]:
    """A JSON object, or IntegrityError."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{at}: a document of it is not JSON.", advice=_ADVICE) from error
    if not isinstance(document, dict):
        raise IntegrityError(f"{at}: a document of it is no JSON object.", advice=_ADVICE)
    return document


def kind(document: dict[str, Any], told: str) -> str:
    """The media type of a manifest: what it says itself, else the header."""
    return str(document.get("mediaType") or told.partition(";")[0].strip())


def amd64(at: Target, index: dict[str, Any]) -> Part:
    """The entry for linux/amd64, the plain one before those for newer processors (variants)."""
    rows = index.get("manifests")
    entries = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    platforms = [
        row["platform"] if isinstance(row.get("platform"), dict) else {} for row in entries
    ]
    fitting = [
        (str(platform.get("variant", "")), row)
        for row, platform in zip(entries, platforms, strict=True)
        if (platform.get("os"), platform.get("architecture")) == ("linux", "amd64")
    ]
    fitting.sort(key=lambda pair: pair[0])
    if not fitting or (len(fitting) > 1 and fitting[0][0] == fitting[1][0]):
        there = (
            ", ".join(
                f"{platform.get('os')}/{platform.get('architecture')}" for platform in platforms
            )
            or "none"
        )
        raise InvalidSpec(
            f"{at} holds {len(fitting)} images for linux/amd64, not one (platforms: {there}).",
            advice="Name the one you mean by its digest.",
        )
    return part(at, fitting[0][1], (*MANIFESTS, *LISTS))


def part(at: Target, row: Any, kinds: Sequence[str]) -> Part:
    """A descriptor, checked: what it says becomes a file name and an amount of space."""
    known = row if isinstance(row, dict) else {}
    digest, size, media = known.get("digest"), known.get("size"), known.get("mediaType")
    if (
        not isinstance(digest, str)
        or not DIGEST.fullmatch(digest)
        or type(size) is not int
        or size < 0
    ):
        raise IntegrityError(
            f"{at}: {str(digest)[:80]!r} of size {str(size)[:40]} is no part of an image.",
            advice=_ADVICE,
        )
    if media not in kinds:
        raise InvalidSpec(
            f"{at}: {str(media)[:100]!r} is not read here.",
            advice=f"Known are {', '.join(sorted(kinds))}.",
        )
    annotations = known.get("annotations")
    own = (
        {str(key): str(value) for key, value in annotations.items()}
        if isinstance(annotations, dict)
        else {}
    )
    return Part(digest=digest, size=size, media_type=str(media), annotations=own)


def image_parts(at: Target, manifest: dict[str, Any]) -> tuple[Part, tuple[Part, ...]]:
    """The config and the layers that a manifest names."""
    rows = manifest.get("layers")
    if not isinstance(rows, list) or not rows:
        raise IntegrityError(f"{at}: its manifest names no layers.", advice=_ADVICE)
    return part(at, manifest.get("config"), CONFIGS), tuple(part(at, row, LAYERS) for row in rows)


def check_config(at: Target, config: dict[str, Any], layers: int) -> None:
    """InvalidSpec for another platform, IntegrityError where it does not fit the manifest."""
    platform = f"{config.get('os')}/{config.get('architecture')}"
    if platform != "linux/amd64":
        raise InvalidSpec(
            f"{at} is for {platform}, and images here are for linux/amd64.",
            advice="Name one of that platform.",
        )
    rootfs = config.get("rootfs")
    diff_ids = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
    known = diff_ids if isinstance(diff_ids, list) else []
    fits = len(known) == layers and all(
        isinstance(one, str) and DIGEST.fullmatch(one) for one in known
    )
    run = {} if config.get("config") is None else config["config"]  # OCI lets it be null
    kinds = (
        ((run, dict), (run.get("Labels") or {}, dict), (run.get("Env") or [], list))
        if isinstance(run, dict)
        else ((run, dict),)
    )
    if not fits or not all(isinstance(value, kind) for value, kind in kinds):
        raise IntegrityError(f"{at}: its config does not fit its {layers} layers.", advice=_ADVICE)
