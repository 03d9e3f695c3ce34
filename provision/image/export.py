"""An image in files of the user's choice: as an OCI image layout, or as an archive that engines and
HPC runtimes read."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, cast

from provision.core import tar
from provision.core.atomic import atomic_stream
from provision.core.dataclass import dataclass
from provision.core.errors import InUse, InvalidSpec
from provision.core.schema import InvalidDocument
from provision.core.system_errors import disk_full_raises
from provision.core.types import Image, Progress
from provision.image import layer_cache, oci_layout

OutputKind = Literal["docker", "oci", "oci-archive", "docker-archive"]

# Their layers may be compressed; readers of docker archives do not know every compression.
COMPRESSIBLE: tuple[OutputKind, ...] = ("oci", "oci-archive")
# What a layout consists of: by the specification, by `docker save`, and our own files.
_LAYOUT_FILE = re.compile(
    r"blobs(/sha256(/[0-9a-f]{64})?)?|oci-layout|(index|manifest|layers)\.json|repositories"
    rf"|{re.escape(oci_layout.MARKER)}"
)
_OUTPUT = re.compile(r"(docker)|(oci|oci-archive|docker-archive):(.+)")


@dataclass(frozen=True, kw_only=True)
class Output:
    """Where an image goes: into the engine, or to a path."""

    kind: OutputKind
    path: Path | None = None

    def __str__(self) -> str:
        return self.kind if self.path is None else f"{self.kind}:{self.path}"


def parse_output(text: str) -> Output:
    """Parse the user's text, or raise InvalidSpec."""
    match = _OUTPUT.fullmatch(text)
    if match is None:
        raise InvalidSpec(
            f"{text!r} is not a destination for an image.",
            advice="Write docker, oci:DIR, oci-archive:FILE or docker-archive:FILE.",
        )
    if match[1]:
        return Output(kind="docker")
    return Output(kind=cast("OutputKind", match[2]), path=Path(match[3]).absolute())


def export_image(
    image: Image, output: Output, progress: Progress, names: Sequence[str] = ()
) -> None:
    """Write the image to a path. Replaces an existing file or layout once the new one is complete.

    names: used instead of the image's own. InUse as by `check_output`, NoSpace if the disk is full.
    """
    check_output(output)
    path = _target(output)
    with disk_full_raises(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if output.kind == "oci":
            # Blobs never change, so hard links are enough where both are on one file system.
            # Corrupt blobs are never passed on.
            blobs = _blobs(image)
            digests = [f"sha256:{blob.name}" for blob in blobs]
            corrupt = layer_cache.quarantine_corrupt(image.layout, digests)
            if corrupt:
                raise oci_layout.corrupt_blob(oci_layout.blob(image.layout, corrupt[0]))
            with oci_layout.staging(path) as new:
                for blob in blobs:
                    layer_cache.link_or_copy(blob, oci_layout.blobs(new) / blob.name)
                (new / oci_layout.INDEX_FILE).write_bytes(
                    oci_layout.renamed_index(image.layout, names)
                )
                version_file = oci_layout.VERSION_FILE
                shutil.copyfile(image.layout / version_file, new / version_file)
            return
        if output.kind == "oci-archive":
            chunks = _oci_archive(image, names)
        else:
            tags = list(names) or [image.reference]
            chunks = docker_archive(image, tags=tags, read=layer_cache.verified_chunks)
        with (
            atomic_stream(path) as file,
            progress.meter(
                f"writing {path.name}", sum(layer.size for layer in image.layers)
            ) as meter,
        ):
            for chunk in chunks:
                file.write(chunk)
                meter.advance(len(chunk))


def check_output(output: Output) -> None:
    """Raise InUse if the path holds something that we never replace. We replace files, empty
    folders, and layouts of one image."""
    if output.path is None:
        return
    path = _target(output)
    if not path.exists():
        return
    if output.kind != "oci":
        if not path.is_file():
            raise InUse(f"{path} exists and is not a file.", advice="Choose another path.")
        return
    if os.path.ismount(path):
        raise InUse(
            f"{path} is the mount point of a file system, and cannot be replaced.",
            advice="Choose a folder in it.",
        )
    problem = _why_not_replaceable(path)
    if problem:
        raise InUse(f"{path} {problem}.", advice="Choose another path.")


def _target(output: Output) -> Path:
    """The target of a symbolic link: we replace the file there, and the link stays."""
    assert output.path is not None
    return Path(os.path.realpath(output.path))


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


# Layouts


def _blobs(image: Image) -> list[Path]:
    """The files of the image alone: its folder may hold others. IntegrityError if one is
    missing."""
    layer_digests = [layer.digest for layer in image.layers]
    digests = dict.fromkeys([image.manifest_digest, image.image_id, *layer_digests])
    blobs = [oci_layout.blob(image.layout, digest) for digest in digests]
    for blob in blobs:
        if not blob.is_file():
            raise oci_layout.corrupt_blob(blob)
    return blobs


# Archives


def _oci_archive(image: Image, names: Sequence[str]) -> Iterator[bytes]:
    """The layout as one tar, small documents first."""
    version = (image.layout / oci_layout.VERSION_FILE).read_bytes()
    yield from tar.file_member(oci_layout.VERSION_FILE, len(version), [version])
    index = oci_layout.renamed_index(image.layout, names)
    yield from tar.file_member(oci_layout.INDEX_FILE, len(index), [index])
    for blob in sorted(_blobs(image), key=lambda path: (path.stat().st_size, path.name)):
        yield from tar.file_member(
            f"blobs/sha256/{blob.name}", blob.stat().st_size, layer_cache.verified_chunks(blob)
        )
    yield tar.END


def docker_archive(
    image: Image,
    *,
    skip: int = 0,
    tags: list[str] | None = None,
    read: Callable[[Path], Iterator[bytes]] = tar.file_chunks,
) -> Iterator[bytes]:
    """The image as `docker load` reads it, without its first `skip` layers, straight from the
    blobs. read: how a blob is read."""
    config = f"{image.image_id.removeprefix('sha256:')}.json"
    names = [f"blobs/sha256/{layer.digest.removeprefix('sha256:')}" for layer in image.layers]
    manifest = oci_layout.canonical([{"Config": config, "Layers": names, "RepoTags": tags}])
    yield from tar.file_member("manifest.json", len(manifest), [manifest])
    files = [(config, oci_layout.blob(image.layout, image.image_id))]
    for layer, name in list(zip(image.layers, names, strict=True))[skip:]:
        files.append((name, oci_layout.blob(image.layout, layer.digest)))
    for name, path in files:
        yield from tar.file_member(name, path.stat().st_size, read(path))
    yield tar.END
