"""An image in a folder of the user's choice, as an OCI image layout; and as the archive that engines
load."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

from provision.core import tar
from provision.core.errors import InUse, InvalidSpec
from provision.core.system_errors import disk_full_raises
from provision.core.types import Image
from provision.image import layer_cache, oci_layout


def parse_output(text: str) -> Path:
    """The folder of oci:DIR, or InvalidSpec."""
    kind, _, path = text.partition(":")
    if kind != "oci" or not path:
        raise InvalidSpec(
            f"{text!r} is not a destination for an image.",
            advice="Write oci:DIR; without --output the image goes to the engine. `tar -cf FILE -C DIR .` "
            "makes an archive of a folder, which podman and skopeo read.",
        )
    return Path(path).absolute()


def export_image(image: Image, path: Path) -> None:
    """Write the image as a layout, which gets its name once it is complete.

    Raises InUse as `check_output`, NoSpace if the disk is full.
    """
    check_output(path)
    # Blobs never change, so hard links are enough where both are on one file system. Corrupt blobs
    # are never passed on. The folder may hold blobs of other images.
    oci_layout.read_image(image)
    digests = [image.manifest_digest, image.image_id, *(layer.digest for layer in image.layers)]
    for digest in layer_cache.quarantine_corrupt(image.layout, digests):
        raise oci_layout.corrupt_blob(oci_layout.blob(image.layout, digest))
    with disk_full_raises(path), oci_layout.staging(path) as new:
        for digest in dict.fromkeys(digests):
            layer_cache.link_or_copy(
                oci_layout.blob(image.layout, digest), oci_layout.blob(new, digest)
            )
        for name in (oci_layout.INDEX_FILE, oci_layout.VERSION_FILE):
            shutil.copyfile(image.layout / name, new / name)


def check_output(path: Path) -> None:
    """Raise InUse unless nothing is there, or an empty folder. Of a symbolic link, its target counts."""
    path = Path(os.path.realpath(path))
    if os.path.ismount(path):
        raise InUse(
            f"{path} is the mount point of a file system, and cannot be replaced.",
            advice="Choose a folder in it.",
        )
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise InUse(
            f"{path} exists and is not an empty folder.",
            advice=f"Remove it (`rm -r {shlex.quote(str(path))}`), or choose another path.",
        )


def docker_archive(image: Image, skip: int) -> Iterator[bytes]:
    """The image as `docker load` reads it, without a name and its first `skip` layers, straight from
    the blobs."""
    config = oci_layout.blob(image.layout, image.image_id)
    layers = [oci_layout.blob(image.layout, layer.digest) for layer in image.layers]
    names = {path: f"blobs/sha256/{path.name}" for path in layers} | {config: f"{config.name}.json"}
    row = {"Config": names[config], "Layers": [names[path] for path in layers], "RepoTags": None}
    manifest = oci_layout.canonical([row])
    yield from tar.file_member("manifest.json", len(manifest), [manifest])
    for path in (config, *layers[skip:]):
        yield from tar.file_member(names[path], path.stat().st_size, tar.file_chunks(path))
    yield tar.END
