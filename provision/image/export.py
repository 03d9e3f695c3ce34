"""An image in a folder of the user's choice, as an OCI image layout; and as the archive that engines
load."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from provision.core import tar
from provision.core.dataclass import frozen
from provision.core.errors import InUse, InvalidSpec
from provision.core.schema import InvalidDocument
from provision.core.system_errors import disk_full_raises
from provision.core.types import Image
from provision.image import layer_cache, oci_layout

# What a layout consists of: by the specification, by `docker save`, and our own files.
_LAYOUT_FILE = re.compile(
    r"blobs(/sha256(/[0-9a-f]{64})?)?|oci-layout|(index|manifest|layers)\.json|repositories"
    rf"|{re.escape(oci_layout.MARKER)}"
)


@frozen
class Output:
    """Where an image goes: into a folder, or into the engine if there is no path."""

    path: Path | None = None

    def __str__(self) -> str:
        return "docker" if self.path is None else f"oci:{self.path}"


def parse_output(text: str) -> Output:
    """Parse the user's text, or raise InvalidSpec."""
    if text == "docker":
        return Output()
    kind, _, path = text.partition(":")
    if kind != "oci" or not path:
        raise InvalidSpec(
            f"{text!r} is not a destination for an image.",
            advice="Write docker or oci:DIR. `tar -cf FILE -C DIR .` makes an archive of a folder, which "
            "podman and skopeo read.",
        )
    return Output(path=Path(path).absolute())


def export_image(image: Image, path: Path) -> None:
    """Write the image as a layout. Replaces an existing layout once the new one is complete.

    Raises InUse as `check_output`, NoSpace if the disk is full.
    """
    check_output(path)
    # Blobs never change, so hard links are enough where both are on one file system. Corrupt blobs
    # are never passed on. The folder may hold blobs of other images.
    digests = dict.fromkeys(
        [image.manifest_digest, image.image_id, *(layer.digest for layer in image.layers)]
    )
    for digest in digests:
        if not oci_layout.blob(image.layout, digest).is_file():
            raise oci_layout.corrupt_blob(oci_layout.blob(image.layout, digest))
    for digest in layer_cache.quarantine_corrupt(image.layout, list(digests)):
        raise oci_layout.corrupt_blob(oci_layout.blob(image.layout, digest))
    with disk_full_raises(path), oci_layout.staging(path) as new:
        for digest in digests:
            layer_cache.link_or_copy(
                oci_layout.blob(image.layout, digest), oci_layout.blob(new, digest)
            )
        for name in (oci_layout.INDEX_FILE, oci_layout.VERSION_FILE):
            shutil.copyfile(image.layout / name, new / name)


def check_output(path: Path) -> None:
    """Raise InUse if the path holds something that we never replace. We replace empty folders, and
    layouts of one image; of a symbolic link, its target."""
    path = Path(os.path.realpath(path))
    if not path.exists():
        return
    if os.path.ismount(path):
        raise InUse(
            f"{path} is the mount point of a file system, and cannot be replaced.",
            advice="Choose a folder in it.",
        )
    problem = _why_not_replaceable(path)
    if problem:
        raise InUse(f"{path} {problem}.", advice="Choose another path.")


def _why_not_replaceable(path: Path) -> str:
    """Why we must not replace a path by a layout; empty if we may."""
    if path.is_dir() and not any(path.iterdir()):
        return ""
    if not (path / oci_layout.VERSION_FILE).is_file():
        return "exists and is not an image layout"
    try:
        index = oci_layout.parse_index((path / oci_layout.INDEX_FILE).read_bytes())
    except (OSError, InvalidDocument):
        return "has an index that cannot be read; all of it would be replaced"
    entries = index["manifests"]
    is_nested = any(entry["mediaType"] in oci_layout.INDEX_TYPES for entry in entries)
    if is_nested or len({entry["digest"] for entry in entries}) > 1:
        return "is a layout of several images; all of them would be replaced"
    for file in sorted(path.rglob("*")):
        name = file.relative_to(path).as_posix()
        if not _LAYOUT_FILE.fullmatch(name):
            return f"holds more than an image layout, {name}; all of it would be replaced"
    return ""


def docker_archive(image: Image, skip: int) -> Iterator[bytes]:
    """The image as `docker load` reads it, without a name and its first `skip` layers, straight from
    the blobs."""
    config = f"{image.image_id.removeprefix('sha256:')}.json"
    names = [f"blobs/sha256/{layer.digest.removeprefix('sha256:')}" for layer in image.layers]
    manifest = oci_layout.canonical([{"Config": config, "Layers": names, "RepoTags": None}])
    yield from tar.file_member("manifest.json", len(manifest), [manifest])
    files = [(config, oci_layout.blob(image.layout, image.image_id))]
    for layer, name in list(zip(image.layers, names, strict=True))[skip:]:
        files.append((name, oci_layout.blob(image.layout, layer.digest)))
    for name, path in files:
        yield from tar.file_member(name, path.stat().st_size, tar.file_chunks(path))
    yield tar.END
