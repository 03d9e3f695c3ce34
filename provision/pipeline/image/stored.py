"""Bases that lie on disk: an OCI image layout, or an archive as `docker save`, `skopeo copy` or `podman save` write it.

With one of these an image is made without any engine. Digests are checked by whoever copies the layers (layers.write_base).
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from provision.errors import IntegrityError, InvalidSpec, ToolMissing
from provision.pipeline.image import tar
from provision.pipeline.image.bases import STORED, BaseImage
from provision.pipeline.image.layers import PIECE
from provision.pipeline.image.oci import INDEX, MANIFEST

NAME = "org.opencontainers.image.ref.name"
LISTS = (INDEX, "application/vnd.docker.distribution.manifest.list.v2+json")
MANIFESTS = (MANIFEST, "application/vnd.docker.distribution.manifest.v2+json")


@dataclass(frozen=True)
class Source:
    """Named files, in a folder or in an archive. open: a file by its name, KeyError where there is none."""

    shown: str
    open: Callable[[str], IO[bytes]]


@dataclass(frozen=True)
class Found:
    """An image in a source: its config, the files of its layers from the bottom up, and the name it goes by, if it has one."""

    config: bytes
    layers: tuple[str, ...]
    name: str | None


def find_base(reference: str) -> BaseImage:
    """The base that `oci:DIR`, `oci-archive:FILE` or `docker-archive:FILE` names.

    ToolMissing where nothing is there, IntegrityError where it is not a whole image, InvalidSpec for another platform.
    """
    with _source(reference) as source:
        found = _find(source)
        config = _json(found.config, source, "the config")
        _check_platform(reference, config)
        size = sum(_size(source, name) for name in found.layers)
    digest = f"sha256:{hashlib.sha256(found.config).hexdigest()}"
    return BaseImage(
        # Never the path: it would tell of this machine, and make another digest of the same image elsewhere.
        reference=found.name or digest,
        digest=digest,
        size=size,
        diff_ids=tuple(config["rootfs"]["diff_ids"]),
        environment=tuple(config.get("config", {}).get("Env") or ()),
        archive=lambda: _layers(reference, found.layers),
    )


@contextmanager
def _source(reference: str) -> Iterator[Source]:
    match = STORED.fullmatch(reference)
    assert match is not None
    transport, path = match[1], Path(match[2])
    if not (path.is_dir() if transport == "oci" else path.is_file()):
        kind = "folder with an OCI image layout" if transport == "oci" else "archive"
        raise ToolMissing(f"The base {reference} is not there: {path} is no {kind}.", advice="Name one that is there with --base.")
    if transport == "oci":
        yield Source(str(path), lambda name: _open_below(path, name))
        return
    try:
        with tarfile.open(path) as archive:
            members = {posixpath.normpath(member.name): member for member in archive}  # `tar -C layout .` writes ./index.json
            yield Source(str(path), lambda name: _member(archive, members[name]))
    except tarfile.TarError as error:
        raise IntegrityError(f"{path} cannot be read as an archive: {error}.", advice="Save the image again.") from error


def _open_below(folder: Path, name: str) -> IO[bytes]:
    path = folder / name
    if ".." in Path(name).parts or Path(name).is_absolute() or not path.is_file():
        raise KeyError(name)
    return path.open("rb")


def _member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    """Docker's archives hold a layer that two images share as a link; extractfile follows it within the archive."""
    file = archive.extractfile(member)
    if file is None:
        raise KeyError(member.name)
    return file


def _find(source: Source) -> Found:
    """docker save's manifest.json if there is one (newer archives have both), else the layout's index."""
    docker = _read(source, "manifest.json")
    if docker is not None:
        entries = _json(docker, source, "manifest.json")
        if len(entries) != 1:
            names = ", ".join(tag for entry in entries for tag in entry.get("RepoTags") or ["<untitled>"])
            raise InvalidSpec(f"{source.shown} holds several images ({names}).", advice="Save the one that you mean alone.")
        config = _demand(source, entries[0]["Config"])
        return Found(config, tuple(entries[0]["Layers"]), next(iter(entries[0].get("RepoTags") or []), None))
    index = _json(_demand(source, "index.json"), source, "index.json")
    entry = _linux(source, index)
    manifest = _blob(source, entry["digest"])
    layers = tuple(_path(row["digest"]) for row in manifest["layers"])
    return Found(_demand(source, _path(manifest["config"]["digest"])), layers, entry.get("annotations", {}).get(NAME))


def _linux(source: Source, index: dict[str, Any]) -> dict[str, Any]:
    """The entry for linux/amd64 (or the only one), also where indexes are nested."""
    rows = [row for row in index["manifests"] if row.get("mediaType") in (*MANIFESTS, *LISTS)]
    named = {row["digest"]: row for row in reversed(rows)}  # an image that has several names is one
    fitting = [row for row in named.values() if _platform(row) in (None, ("linux", "amd64"))]
    if len(fitting) != 1:
        there = ", ".join("/".join(_platform(row) or ("any",)) for row in rows) or "none"
        raise InvalidSpec(
            f"{source.shown} holds {len(fitting)} images for linux/amd64, not one (platforms: {there}).",
            advice="Copy the one that you mean into a layout of its own.",
        )
    row: dict[str, Any] = fitting[0]
    if row["mediaType"] in LISTS:
        inner = _linux(source, _blob(source, row["digest"]))
        return {**inner, "annotations": {**row.get("annotations", {}), **inner.get("annotations", {})}}
    return row


def _platform(row: dict[str, Any]) -> tuple[str, str] | None:
    platform = row.get("platform")
    return (platform["os"], platform["architecture"]) if platform else None


def _blob(source: Source, digest: str) -> dict[str, Any]:
    content = _demand(source, _path(digest))
    if f"sha256:{hashlib.sha256(content).hexdigest()}" != digest:
        raise IntegrityError(f"{source.shown}: {digest} is not what its name says.", advice="Copy or save the image again.")
    document: dict[str, Any] = _json(content, source, digest)
    return document


def _path(digest: str) -> str:
    algorithm, _, value = digest.partition(":")
    return f"blobs/{algorithm}/{value}"


def _demand(source: Source, name: str) -> bytes:
    content = _read(source, name)
    if content is None:
        raise IntegrityError(f"{source.shown} has no {name}: it is not a whole image.", advice="Copy or save the image again.")
    return content


def _read(source: Source, name: str) -> bytes | None:
    try:
        with source.open(name) as file:
            return file.read()
    except KeyError:
        return None


def _size(source: Source, name: str) -> int:
    try:
        with source.open(name) as file:
            return file.seek(0, 2)
    except KeyError as error:
        raise IntegrityError(f"{source.shown} lacks its layer {name}.", advice="Copy or save the image again.") from error


def _json(content: bytes, source: Source, what: str) -> Any:
    try:
        return json.loads(content)
    except ValueError as error:
        raise IntegrityError(f"{source.shown}: {what} is not JSON.", advice="Copy or save the image again.") from error


def _check_platform(reference: str, config: dict[str, Any]) -> None:
    platform = f"{config.get('os')}/{config.get('architecture')}"
    if platform != "linux/amd64":
        raise InvalidSpec(
            f"The base {reference} is for {platform}, but the environment's packages are for linux/amd64.",
            advice="Name a base of that platform with --base.",
        )


def _layers(reference: str, names: tuple[str, ...]) -> Iterator[bytes]:
    """The layers alone, as a tar stream."""
    with _source(reference) as source:
        for name in dict.fromkeys(names):
            size = _size(source, name)
            yield tar.header(name, kind="file", mode=0o644, mtime=0, size=size)
            with source.open(name) as file:
                while piece := file.read(PIECE):
                    yield piece
            yield tar.padding(size)
        yield tar.END
