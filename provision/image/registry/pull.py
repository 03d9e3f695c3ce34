"""An image from a registry into a layout on disk: each file is hashed while it is written, and an
interrupted pull is resumed."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from provision.adapters.http import sha256_of
from provision.core.atomic import atomic_write
from provision.core.errors import IntegrityError, NoSpace
from provision.core.paths import make_private_directory
from provision.core.platforms import PLATFORM, Platform
from provision.core.system_errors import disk_full_raises
from provision.core.tar import CHUNK
from provision.core.types import Image, Layer, Progress
from provision.image import disk_base, layer_cache, layers, oci_layout
from provision.image import manifest as manifests
from provision.image.config import LOCK_LABEL
from provision.image.manifest import Descriptor, ImageDocuments
from provision.image.oci_layout import INDEX_TYPES, MANIFEST_TYPES
from provision.image.registry.client import (
    ConnectionFailed,
    RegistryClient,
    read_response,
    refusal_error,
    registry_backoff,
    unreachable_error,
)
from provision.image.registry.reference import RegistryReference
from provision_runtime.report.text import format_bytes

ACCEPT = {"Accept": ", ".join((*MANIFEST_TYPES, *INDEX_TYPES))}
PARTIAL = "parts"
ADVICE = (
    "It was discarded. Run the same command again; if the error returns, tell the registry's "
    "operator."
)
SPACE_ADVICE = (
    "Free space there and run the same command again: the pull continues where it stopped."
)


# Finding


def find_remote(
    reference: RegistryReference, platform: Platform | None = PLATFORM
) -> ImageDocuments:
    """The image for a platform at a reference, without its layers.

    platform: None: any, of one image. ToolMissing if there is none, InvalidSpec if it is not such an
    image, IntegrityError if its documents are invalid or do not match their digests.
    """
    with RegistryClient(reference) as client:

        def read(descriptor: Descriptor) -> bytes:
            if descriptor.media_type in manifests.CONFIG_TYPES:
                path = f"blobs/{descriptor.digest}"
            else:
                path = f"manifests/{descriptor.digest}"
            return client.request("GET", path, headers=ACCEPT, expected=(200,)).content

        response = client.request(
            "GET", f"manifests/{reference.tag_or_digest}", headers=ACCEPT, expected=(200,)
        )
        content = response.content
        stated_digest = reference.digest or response.headers.get("Docker-Content-Digest")
        if stated_digest:
            manifests.check_digest(str(reference), stated_digest, content)
        media_type = manifests.media_type(content, response.headers.get("Content-Type", ""))
        root = Descriptor.of(content, media_type)
        return manifests.read_image(str(reference), root, content, read, platform)


# Pulling


def pull_image(
    reference: RegistryReference,
    remote: ImageDocuments,
    layout: Path,
    progress: Progress,
    nearby: Sequence[Path] = (),
) -> Image:
    """Pull an image into a layout, which is complete once it has an index.json. An interrupted pull
    leaves what it received for the next one.

    nearby: layouts that may already have some of its layers. Raises IntegrityError for wrong bytes,
    NoSpace before or when the disk is full, Unreachable and
    ToolFailed as push_image does.
    """
    discard_if_incomplete(layout)
    if not is_complete(layout):
        with disk_full_raises(layout, SPACE_ADVICE):
            _pull(reference, remote, layout, progress, nearby)
    return pulled_image(reference, remote, layout)


def pulled_image(reference: RegistryReference, remote: ImageDocuments, layout: Path) -> Image:
    """The image as it is, or will be, in `layout`."""
    pulled_layers = tuple(
        Layer(
            group=layer.annotations.get(oci_layout.GROUP, oci_layout.OTHER_GROUP),
            digest=layer.digest,
            size=layer.size,
            media_type=layer.media_type,
        )
        for layer in remote.layers
    )
    # Engines need a tag, and a reference by digest has none.
    tag = reference.digest.removeprefix("sha256:")[:12] if reference.digest else reference.tag
    return Image(
        reference=f"{reference.registry}/{reference.repository}:{tag}",
        layout=layout,
        manifest_digest=remote.digest,
        image_id=remote.config_digest,
        base="",
        base_digest="",
        lock_sha256=remote.labels.get(LOCK_LABEL, ""),
        layers=pulled_layers,
    )


def is_complete(layout: Path) -> bool:
    """Whether a pull into a layout has finished. Call discard_if_incomplete first to make sure that
    the layout is still intact."""
    return (layout / oci_layout.INDEX_FILE).is_file()


def discard_if_incomplete(layout: Path) -> None:
    """Check a pulled layout. If it is no longer intact, discard its corrupt layers and its index:
    the next pull then fetches only what is missing."""
    if not is_complete(layout):
        return
    manifest = oci_layout.read(layout)
    digests = [layer.digest for layer in manifest.layers] if manifest else []
    if manifest is None or layer_cache.quarantine_corrupt(layout, digests):
        (layout / oci_layout.INDEX_FILE).unlink()


def _pull(
    reference: RegistryReference,
    remote: ImageDocuments,
    layout: Path,
    progress: Progress,
    nearby: Sequence[Path],
) -> None:
    for folder in (oci_layout.blobs(layout), layout / PARTIAL):
        make_private_directory(folder)
    descriptors = list({layer.digest: layer for layer in remote.layers}.values())
    missing = [
        layer
        for layer in descriptors
        if not _has_size(oci_layout.blob(layout, layer.digest), layer)
    ]
    remaining = sum(layer.size - _size(_partial_path(layout, layer)) for layer in missing)
    free = shutil.disk_usage(layout).free
    if free < remaining:
        raise NoSpace(
            f"The image still needs {format_bytes(remaining)}, and {layout} has "
            f"{format_bytes(free)} free.",
            advice=SPACE_ADVICE,
        )
    title = f"pulling from {reference.registry}"
    with RegistryClient(reference) as client, progress.meter(title, remote.size) as meter:
        for layer in descriptors:
            if layer not in missing or _take_nearby(layer, nearby, layout):
                meter.advance(layer.size)
                continue
            partial = _partial_path(layout, layer)
            _download(client, layer, partial, meter.advance)
            partial.replace(oci_layout.blob(layout, layer.digest))
    # The index comes last: it makes the layout complete.
    oci_layout.blob(layout, remote.config_digest).write_bytes(remote.config)
    oci_layout.blob(layout, remote.digest).write_bytes(remote.manifest)
    (layout / oci_layout.VERSION_FILE).write_bytes(oci_layout.canonical(oci_layout.LAYOUT_VERSION))
    layer_cache.record(layout, {layer.digest: "" for layer in remote.layers})
    index = oci_layout.index_content(
        remote.digest,
        len(remote.manifest),
        remote.media_type,
        remote.source,
        remote.architecture,
    )
    atomic_write(layout / oci_layout.INDEX_FILE, index)
    shutil.rmtree(layout / PARTIAL, ignore_errors=True)


def _take_nearby(layer: Descriptor, nearby: Sequence[Path], layout: Path) -> bool:
    """Link or copy a layer of another layout, if its bytes match its digest."""
    for other in nearby:
        path = oci_layout.blob(other, layer.digest)
        try:
            matches = _has_size(path, layer) and f"sha256:{sha256_of(path)}" == layer.digest
        except OSError:  # for example another user's
            continue
        if matches:
            layer_cache.link_or_copy(path, oci_layout.blob(layout, layer.digest))
            return True
    return False


def _has_size(path: Path, layer: Descriptor) -> bool:
    return path.is_file() and path.stat().st_size == layer.size


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _partial_path(layout: Path, layer: Descriptor) -> Path:
    """The path of a layer until it is complete: not among the blobs, whose content always matches
    their names."""
    return layout / PARTIAL / layer.digest.removeprefix("sha256:")


# Downloading one layer


class _GrowingFile:
    """A file that is hashed while it grows, including what it already holds."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a+b")
        self._hash_content()

    def _hash_content(self) -> None:
        self._hash = hashlib.sha256()
        self.size = 0
        self._file.seek(0)
        while chunk := self._file.read(CHUNK):
            self._hash.update(chunk)
            self.size += len(chunk)

    def write(self, chunk: bytes) -> None:
        self._file.write(chunk)
        self._hash.update(chunk)
        self.size += len(chunk)

    def clear(self) -> None:
        self._file.truncate(0)
        self._hash_content()

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"

    def __enter__(self) -> _GrowingFile:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()


def _download(
    client: RegistryClient, layer: Descriptor, path: Path, advance: Callable[[int], None]
) -> None:
    """Download what `path` lacks of a layer. Gives up after TRIES requests in a row that received
    nothing. IntegrityError if the result, with what an earlier run left there, does not match the
    digest."""
    with _GrowingFile(path) as file:
        if file.size > layer.size:
            file.clear()
        advance(file.size)
        backoff = registry_backoff()
        while file.size < layer.size:
            size_before = file.size
            failure = ConnectionFailed("the response ended early")
            try:
                _request_rest(client, layer, file, advance)
            except ConnectionFailed as error:
                failure = error
            if file.size > size_before:
                backoff.reset()
            else:
                backoff.count_failure()
            if backoff.is_exhausted:
                raise unreachable_error(client.reference, failure)
            if file.size < layer.size:
                backoff.wait()
        if file.size > layer.size or file.digest != layer.digest:
            path.unlink()
            raise IntegrityError(
                f"{client.reference}: the registry sent something else for {layer.digest}.",
                advice=ADVICE,
            )


def _request_rest(
    client: RegistryClient,
    layer: Descriptor,
    file: _GrowingFile,
    advance: Callable[[int], None],
) -> None:
    """One request for everything that is missing. Raises ConnectionFailed if it may be repeated."""
    begin = file.size
    range_header = {"Range": f"bytes={begin}-"} if begin else {}
    with client.stream("GET", f"blobs/{layer.digest}", headers=range_header) as response:
        if response.status_code == 416:  # what we have is not part of that file
            advance(-file.size)
            file.clear()
            return
        if response.status_code not in (200, 206):
            refusal = read_response(client.reference, response)
            raise refusal_error(client.reference, f"fetch {layer.digest[:19]}", refusal)
        content_range = response.headers.get("Content-Range", "")
        if begin and not content_range.startswith(f"bytes {begin}-"):
            advance(-begin)  # this registry sends complete files only
            file.clear()
        while file.size <= layer.size and (chunk := response.raw.read1(CHUNK)):
            file.write(chunk)
            advance(len(chunk))


# Decompressing


def decompress_image(
    image: Image, diff_ids: Sequence[str], folder: Path, progress: Progress
) -> Image:
    """The image with uncompressed layers, which the engine and docker's archives need, in `folder`;
    unchanged if its layers are uncompressed.

    Raises IntegrityError if a layer does not match its diff id in the config.
    """
    if [layer.digest for layer in image.layers] == list(diff_ids):
        return image
    base = disk_base.read_disk_base(f"oci:{image.layout}", platform=None)
    shutil.rmtree(folder, ignore_errors=True)  # of a pull that was killed
    blobs = oci_layout.blobs(folder)
    make_private_directory(blobs)
    with progress.meter("unpacking layers", base.size) as meter:
        plain_layers = layers.write_base(base.archive(), diff_ids, blobs, meter.advance)
    layer_cache.link_or_copy(
        oci_layout.blob(image.layout, image.image_id), oci_layout.blob(folder, image.image_id)
    )
    return replace(image, layout=folder, layers=tuple(plain_layers))
