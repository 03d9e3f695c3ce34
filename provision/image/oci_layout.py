"""OCI image layouts on disk: written in a staging directory, renamed into place, read back and checked.

A layout is oci-layout, index.json and blobs/sha256/*, as image-layout.md of the OCI image
specification 1.1 describes it.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict

from provision.core.atomic import backup_path, remove_tree, replace_directory
from provision.core.dataclass import frozen
from provision.core.errors import IntegrityError
from provision.core.file_locks import open_lock_file, try_lock
from provision.core.paths import make_private_directory
from provision.core.schema import InvalidDocument, parse_document
from provision.core.types import Image, Layer

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
INDEX_TYPES = (INDEX, DOCKER_LIST)
MANIFEST_TYPES = (MANIFEST, DOCKER_MANIFEST)

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
VERSION_FILE, INDEX_FILE = "oci-layout", "index.json"
LAYOUT_VERSION = {"imageLayoutVersion": "1.0.0"}
GROUP = "org.provision.group"
OTHER_GROUP = "layer"  # of a layer that another tool made
NAME = "org.opencontainers.image.ref.name"
# How the name of a staging directory ends, and a file in it, which is locked while it is written.
MARKER = ".provision-unfinished"


# The fields that we read; the schemas say which of them a document must have.


class Platform(TypedDict, total=False):
    os: str
    architecture: str
    variant: str


class DescriptorRow(TypedDict, total=False):
    """A descriptor: a file of an image by its digest."""

    mediaType: str
    digest: str
    size: int
    platform: Platform | None
    annotations: dict[str, str] | None
    artifactType: str


class Index(TypedDict):
    manifests: list[DescriptorRow]


class ImageManifest(TypedDict, total=False):
    config: DescriptorRow
    layers: list[DescriptorRow]
    annotations: dict[str, str] | None
    subject: DescriptorRow | None


class RootFs(TypedDict, total=False):
    type: str
    diff_ids: list[str]


class ImageConfig(TypedDict, total=False):
    os: str
    architecture: str
    created: str
    config: Settings | None
    history: list[dict[str, str]]
    rootfs: RootFs


# What containers of an image start with: Docker's names, of values of many kinds.
Settings = dict[str, Any]


@frozen
class LayoutManifest:
    """The manifest of a complete layout."""

    manifest_digest: str
    config_digest: str
    layers: tuple[Layer, ...]
    annotations: Mapping[str, str]


def blobs(layout: Path) -> Path:
    return layout / "blobs" / "sha256"


def blob(layout: Path, digest: str) -> Path:
    return blobs(layout) / digest.removeprefix("sha256:")


def sha256_digest(content: bytes) -> str:
    """The digest of some bytes, as OCI writes it."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


# Documents


def canonical(document: object) -> bytes:
    """A document as bytes, so that its digest depends on its content only."""
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def read_verified(layout: Path, digest: str) -> bytes:
    """The bytes of a manifest or config, or InvalidDocument if they do not match the digest."""
    content = blob(layout, digest).read_bytes()
    if sha256_digest(content) != digest:
        raise InvalidDocument(f"the content of {digest} does not match its digest")
    return content


def read_config(layout: Path, digest: str) -> ImageConfig:
    """The image config of a layout, or IntegrityError."""
    try:
        config: ImageConfig = parse_document(read_verified(layout, digest), "oci-config")
    except InvalidDocument as error:
        raise corrupt_blob(blob(layout, digest)) from error
    return config


def corrupt_blob(path: Path) -> IntegrityError:
    """The error for a blob of our layouts that does not match its name, or is missing."""
    return IntegrityError(
        f"{path} is corrupt: it does not match its digest.",
        advice="Run `provision image build` to make it again.",
    )


def read(layout: Path) -> LayoutManifest | None:
    """The manifest of a complete layout: documents that match their digests, and every layer in
    its size. None for anything else.

    Layers are not hashed. Each was hashed before it was named after its digest, and the layout got
    its name after that; layer_cache tells whether layers changed since then.
    """
    try:
        index: Index = parse_document((layout / INDEX_FILE).read_bytes(), "oci-index")
        if not index["manifests"]:
            return None
        manifest_digest = index["manifests"][0]["digest"]
        content = read_verified(layout, manifest_digest)
        manifest: ImageManifest = parse_document(content, "oci-manifest")
        config_digest = manifest["config"]["digest"]
        read_verified(layout, config_digest)
        layers = []
        for descriptor in manifest["layers"]:
            group = (descriptor.get("annotations") or {}).get(GROUP, OTHER_GROUP)
            size = blob(layout, descriptor["digest"]).stat().st_size
            if size != descriptor["size"]:
                return None
            layers.append(
                Layer(
                    group=group,
                    digest=descriptor["digest"],
                    size=size,
                    media_type=descriptor["mediaType"],
                )
            )
    except (OSError, InvalidDocument):
        return None
    return LayoutManifest(
        manifest_digest=manifest_digest,
        config_digest=config_digest,
        layers=tuple(layers),
        annotations=manifest.get("annotations") or {},
    )


def read_image(image: Image) -> LayoutManifest:
    """The manifest of an image that we made. IntegrityError if its layout is incomplete, or another
    image's."""
    manifest = read(image.layout)
    if manifest is None or manifest.manifest_digest != image.manifest_digest:
        raise IntegrityError(
            f"{image.layout} is no longer the complete image.",
            advice="Run `provision image build` to make it again.",
        )
    return manifest


def layer_files(image: Image) -> list[Path]:
    """The layers of an image that we made. Raises IntegrityError as `read_image`."""
    return [blob(image.layout, layer.digest) for layer in read_image(image).layers]


def write(
    layout: Path,
    config: ImageConfig,
    layers: Sequence[Layer],
    annotations: Mapping[str, str],
    name: str,
    layer_annotations: Mapping[str, Mapping[str, str]] | None = None,
) -> LayoutManifest:
    """Complete a directory that already holds the layers: add config, manifest and index.

    layer_annotations: further ones of layers, by digest.
    """
    config_digest, config_size = _write_document(layout, config)
    descriptors = [
        {
            "annotations": {GROUP: layer.group, **(layer_annotations or {}).get(layer.digest, {})},
            "digest": layer.digest,
            "mediaType": layer.media_type,
            "size": layer.size,
        }
        for layer in layers
    ]
    manifest = {
        "annotations": dict(annotations),
        "config": {"digest": config_digest, "mediaType": CONFIG, "size": config_size},
        "layers": descriptors,
        "mediaType": MANIFEST,
        "schemaVersion": 2,
    }
    digest, size = _write_document(layout, manifest)
    (layout / INDEX_FILE).write_bytes(
        index_content(digest, size, MANIFEST, name, config["architecture"])
    )
    (layout / VERSION_FILE).write_bytes(canonical(LAYOUT_VERSION))
    return LayoutManifest(
        manifest_digest=digest,
        config_digest=config_digest,
        layers=tuple(layers),
        annotations=dict(annotations),
    )


def _write_document(layout: Path, document: object) -> tuple[str, int]:
    content = canonical(document)
    digest = sha256_digest(content)
    blob(layout, digest).write_bytes(content)
    return digest, len(content)


def index_content(digest: str, size: int, media_type: str, name: str, architecture: str) -> bytes:
    """The index.json of a layout with one image under one name."""
    entry = {
        "annotations": {NAME: name},
        "digest": digest,
        "mediaType": media_type,
        "platform": {"architecture": architecture, "os": "linux"},
        "size": size,
    }
    return canonical({"manifests": [entry], "mediaType": INDEX, "schemaVersion": 2})


# Staging


@contextmanager
def staging(layout: Path) -> Iterator[Path]:
    """A staging directory next to `layout`. It takes the layout's name when the block succeeds, and
    is removed when the block fails. What killed runs left is removed at the end."""
    layout = _resolve(layout)
    make_private_directory(layout.parent)
    new = Path(tempfile.mkdtemp(prefix=f".{layout.name}.", suffix=MARKER, dir=layout.parent))
    lock = open_lock_file(new / MARKER)
    try:
        try_lock(lock)  # without locks, the end of a simultaneous run may remove this one's files
        new.chmod(0o755)
        make_private_directory(blobs(new))
        yield new
        replace_directory(layout, new)
        (layout / MARKER).unlink()
    finally:
        shutil.rmtree(new, ignore_errors=True)
        os.close(lock)
        remove_leftovers(layout)


def unfinished(layout: Path) -> list[Path]:
    """The staging directories that killed runs left next to a layout: they have finished layers."""
    layout = _resolve(layout)
    # mkdtemp adds eight characters; a `*` would match those of the layout `NAME.OTHER` too.
    pattern = f".{glob.escape(layout.name)}.{'?' * 8}{MARKER}"
    return [
        path
        for path in sorted(layout.parent.glob(pattern))
        if path.is_dir() and not path.is_symlink() and not _is_locked(path / MARKER)
    ]


def remove_leftovers(layout: Path) -> None:
    """Remove what killed runs left next to a layout. If one was killed between two renames, the old
    layout returns to its name."""
    layout = _resolve(layout)
    for path in unfinished(layout):
        shutil.rmtree(path, ignore_errors=True)
    backup = backup_path(layout)
    if backup.exists() and not layout.exists():
        backup.rename(layout)
    remove_tree(backup)


def _resolve(layout: Path) -> Path:
    """The target of a symbolic link: we replace the layout there, and the link stays."""
    return Path(os.path.realpath(layout))


def _is_locked(path: Path) -> bool:
    try:
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return try_lock(lock) == "busy"
    finally:
        os.close(lock)
