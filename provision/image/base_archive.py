"""Base images on disk: an OCI image layout, or an archive that `docker save`, `skopeo copy` or
`podman save` wrote.

With one of these an image is built without an engine. The digests of layers are checked when they
are copied (layers.write_base).
"""

from __future__ import annotations

import itertools
import posixpath
import shlex
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypedDict

from provision.core import tar
from provision.core.container import PREFIX
from provision.core.errors import IntegrityError, InvalidSpec, ToolMissing
from provision.image import oci_layout
from provision.image.base import ON_DISK, BaseImage
from provision.image.config import BASE_ID, BASE_NAME
from provision.image.oci_layout import (
    INDEX_FILE,
    INDEX_TYPES,
    MANIFEST_TYPES,
    NAME,
    Entry,
    ImageConfig,
    ImageManifest,
    Index,
)

DOCUMENT_LIMIT = 8 << 20  # manifests and configs have kilobytes
MEMBERS_LIMIT = 10_000  # of an archive, which has one or two for each layer
NESTING_LIMIT = 4
ADVICE = "Copy or save the image again."


class SavedImage(TypedDict):
    """An image in manifest.json, as `docker save` writes it."""

    Config: str
    Layers: list[str]
    RepoTags: object


class _NoSuchFile(Exception):
    """A file is not in the layout or archive."""


@dataclass(frozen=True)
class ImageFiles:
    """The files of an image, in a directory or an archive. open: a file by its name; raises
    _NoSuchFile."""

    location: str
    open: Callable[[str], IO[bytes]]


@dataclass(frozen=True)
class DiskImage:
    """An image on disk: its config, the files of its layers from the bottom up, and its name if it
    has one."""

    config: bytes
    layers: tuple[str, ...]
    name: str | None


def read_disk_base(reference: str) -> BaseImage:
    """The base that `oci:DIR`, `oci-archive:FILE` or `docker-archive:FILE` names.

    ToolMissing if nothing is there, IntegrityError if it is not a complete image, InvalidSpec for
    another platform.
    """
    with _open(reference) as files:
        image = _read_image(files)
        config: ImageConfig = _parse(files, image.config, "oci-config", "its config")
        platform = f"{config['os']}/{config['architecture']}"
        if platform != oci_layout.PLATFORM:
            raise InvalidSpec(
                f"The base {reference} is for {platform}, but the environment's packages are for "
                "linux/amd64.",
                advice="Choose a base for that platform with --base.",
            )
        diff_ids = config["rootfs"]["diff_ids"]
        if len(diff_ids) != len(image.layers):
            raise _incomplete(
                files, f"its config names {len(diff_ids)} layers, its manifest {len(image.layers)}"
            )
        size = sum(_size(files, name) for name in image.layers)
    digest = oci_layout.sha256_digest(image.config)
    return BaseImage(
        # Never the path: it belongs to this machine, and would give the same image another digest
        # elsewhere.
        reference=image.name or digest,
        digest=digest,
        size=size,
        diff_ids=tuple(diff_ids),
        environment=tuple((config.get("config") or {}).get("Env") or ()),
        archive=lambda: _layer_archive(reference, image.layers),
    )


def recorded_base(layout: Path, reference: str) -> BaseImage | None:
    """The base that the image in one of our layouts was made from, if it was named `reference`.

    Tells whether that image is current where the base itself was removed from the engine. No image
    is built from it: its variables are those of our image, and a later request may need fewer.
    """
    manifest = oci_layout.read(layout)
    if manifest is None or manifest.annotations.get(BASE_NAME) != reference:
        return None
    own_path = f"PATH={PREFIX}/bin:"
    variables = []
    settings = oci_layout.read_config(layout, manifest.config_digest).get("config") or {}
    for pair in settings["Env"]:
        if pair.startswith(own_path):
            pair = "PATH=" + pair.removeprefix(own_path)
        variables.append(pair)
    layers = [layer for layer in manifest.layers if layer.group == "base"]
    names = tuple(f"blobs/sha256/{layer.digest.removeprefix('sha256:')}" for layer in layers)
    return BaseImage(
        reference=reference,
        digest=manifest.annotations[BASE_ID],
        size=sum(layer.size for layer in layers),
        diff_ids=tuple(layer.digest for layer in layers),
        environment=tuple(variables),
        archive=lambda: _layer_archive(f"oci:{layout}", names),
    )


# Files


@contextmanager
def _open(reference: str) -> Iterator[ImageFiles]:
    match = ON_DISK.fullmatch(reference)
    assert match is not None
    transport, path = match[1], Path(match[2])
    if transport == "oci":
        folder, separator, _ = match[2].rpartition(":")
        if not path.is_dir() and separator and Path(folder).is_dir():
            raise InvalidSpec(
                f"{reference} names a tag, as skopeo does; provision takes a layout with one image.",
                advice=f"Write oci:{folder}; `skopeo copy {shlex.quote(reference)} oci:OTHER` "
                "copies one image of several.",
            )
        if not path.is_dir():
            raise ToolMissing(
                f"There is no base {reference}: {path} is not a folder with an OCI image layout.",
                advice="Choose an existing one with --base.",
            )
        yield ImageFiles(str(path), lambda name: _open_in_folder(path, name))
        return
    if not path.is_file():
        raise ToolMissing(
            f"There is no base {reference}: {path} is not an archive.",
            advice="Choose an existing one with --base.",
        )
    try:
        with tarfile.open(path, tarinfo=tar.BoundedTarInfo) as archive:
            # `tar -C layout .` names its members ./index.json and so on.
            members = {
                posixpath.normpath(member.name): member
                for member in itertools.islice(archive, MEMBERS_LIMIT)
            }
            yield ImageFiles(str(path), lambda name: _open_in_archive(archive, members, name))
    except tar.UNREADABLE as error:
        raise IntegrityError(
            f"{path} cannot be read as an archive: {error}.", advice="Save the image again."
        ) from error


def _open_in_folder(folder: Path, name: str) -> IO[bytes]:
    path = folder / name
    if ".." in Path(name).parts or Path(name).is_absolute() or not path.is_file():
        raise _NoSuchFile(name)
    return path.open("rb")


def _open_in_archive(
    archive: tarfile.TarFile, members: dict[str, tarfile.TarInfo], name: str
) -> IO[bytes]:
    """Docker's archives hold a layer that two images share as a link; extractfile follows it within
    the archive."""
    if name not in members:
        raise _NoSuchFile(name)
    try:
        file = archive.extractfile(members[name])
    except KeyError as error:  # a link to a file that is not in the archive
        raise _NoSuchFile(name) from error
    if file is None:
        raise _NoSuchFile(name)
    return file


def _has_file(files: ImageFiles, name: str) -> bool:
    try:
        files.open(name).close()
    except _NoSuchFile:
        return False
    return True


def _read(files: ImageFiles, name: str) -> bytes:
    """A document of an image. IntegrityError if it is missing or too large."""
    try:
        with files.open(name) as file:
            content = file.read(DOCUMENT_LIMIT + 1)
    except _NoSuchFile as error:
        raise _incomplete(files, f"it has no {name}") from error
    if len(content) > DOCUMENT_LIMIT:
        raise _incomplete(files, f"{name} is too large for such a document")
    return content


def _read_verified(files: ImageFiles, digest: str) -> bytes:
    content = _read(files, _blob_path(digest))
    if oci_layout.sha256_digest(content) != digest:
        raise IntegrityError(
            f"{files.location}: the content of {digest} does not match its digest.", advice=ADVICE
        )
    return content


def _size(files: ImageFiles, name: str) -> int:
    try:
        with files.open(name) as file:
            return file.seek(0, 2)
    except _NoSuchFile as error:
        raise IntegrityError(f"{files.location} lacks its layer {name}.", advice=ADVICE) from error


def _blob_path(digest: str) -> str:
    algorithm, _, value = digest.partition(":")
    return f"blobs/{algorithm}/{value}"


def _parse(files: ImageFiles, content: bytes, schema: str, document: str) -> Any:
    try:
        return oci_layout.parse_document(content, schema)
    except oci_layout.InvalidDocument as error:
        raise _incomplete(files, f"{document}: {error}") from error


def _incomplete(files: ImageFiles, reason: str) -> IntegrityError:
    return IntegrityError(f"{files.location} is not a complete image: {reason}.", advice=ADVICE)


# Documents


def _read_image(files: ImageFiles) -> DiskImage:
    """Read by docker save's manifest.json if there is one (newer archives have both), otherwise by
    the layout's index."""
    if _has_file(files, "manifest.json"):
        return _read_docker_archive(files)
    index = _parse(files, _read(files, INDEX_FILE), "oci-index", INDEX_FILE)
    entry = _amd64_entry(files, index)
    content = _read_verified(files, entry["digest"])
    manifest: ImageManifest = _parse(files, content, "oci-manifest", "its manifest")
    layers = tuple(_blob_path(layer["digest"]) for layer in manifest["layers"])
    return DiskImage(
        config=_read_verified(files, manifest["config"]["digest"]), layers=layers, name=_name(entry)
    )


def _read_docker_archive(files: ImageFiles) -> DiskImage:
    content = _read(files, "manifest.json")
    images: list[SavedImage] = _parse(files, content, "docker-archive", "manifest.json")
    if len(images) != 1:
        names = [tag for image in images for tag in _tags(image) or ["<untitled>"]]
        raise InvalidSpec(
            f"{files.location} holds {len(images)} images ({', '.join(names) or 'none'}), not one.",
            advice="Save only the image that you want.",
        )
    (image,) = images
    name = next(iter(_tags(image)), None)
    return DiskImage(config=_read(files, image["Config"]), layers=tuple(image["Layers"]), name=name)


def _tags(image: SavedImage) -> list[str]:
    tags = image.get("RepoTags")
    if not isinstance(tags, list):
        return []
    return [tag for tag in tags if isinstance(tag, str)]


def _amd64_entry(files: ImageFiles, index: Index, depth: int = 0) -> Entry:
    """The entry for linux/amd64, or the only one without a platform; also through nested
    indexes."""
    entries = [
        entry
        for entry in index["manifests"]
        if entry["mediaType"] in (*MANIFEST_TYPES, *INDEX_TYPES)
    ]
    # An image with several names is one image, known by the first of them.
    by_digest: dict[str, Entry] = {}
    for entry in entries:
        by_digest.setdefault(entry["digest"], entry)
    matching = [
        entry for entry in by_digest.values() if _platform(entry) in ("", oci_layout.PLATFORM)
    ]
    if len(matching) != 1:
        platforms = ", ".join(_platform(entry) or "any" for entry in entries) or "none"
        raise InvalidSpec(
            f"{files.location} holds {len(matching)} images for linux/amd64, not one "
            f"(platforms: {platforms}).",
            advice="Copy the one that you want into a layout of its own.",
        )
    entry = matching[0]
    if entry["mediaType"] not in INDEX_TYPES:
        return entry
    if depth == NESTING_LIMIT:
        raise _incomplete(files, "its indexes are nested too deeply")
    content = _read_verified(files, entry["digest"])
    nested = _amd64_entry(files, _parse(files, content, "oci-index", "its nested index"), depth + 1)
    name = _name(nested) or _name(entry)
    return {**nested, "annotations": {NAME: name} if name else {}}


def _platform(entry: Entry) -> str:
    """`os/architecture`; empty if the entry names no platform."""
    platform = entry.get("platform")
    if not platform:
        return ""
    return f"{platform.get('os')}/{platform.get('architecture')}"


def _name(entry: Entry) -> str | None:
    return (entry.get("annotations") or {}).get(NAME)


def _layer_archive(reference: str, names: tuple[str, ...]) -> Iterator[bytes]:
    """The layers alone, as a tar stream."""
    with _open(reference) as files:
        for name in dict.fromkeys(names):
            with files.open(name) as file:
                chunks = iter(lambda: file.read(tar.CHUNK), b"")
                yield from tar.file_member(name, _size(files, name), chunks)
        yield tar.END
