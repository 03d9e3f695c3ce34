"""Bases that lie on disk: an OCI image layout, or an archive as `docker save`, `skopeo copy` or `podman save` write it.

With one of these an image is made without any engine. Digests are checked by whoever copies the layers (layers.write_base).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import posixpath
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from provision.core.errors import IntegrityError, InvalidSpec, ToolMissing
from provision.image import tar
from provision.image.archives import UNREADABLE, Bounded
from provision.image.base_images import DIGEST, STORED, BaseImage
from provision.image.layers import PIECE
from provision.image.oci_layout import INDEX, MANIFEST

DOCUMENT_LIMIT = 8 << 20  # manifests and configs have kilobytes
MEMBERS_LIMIT = 10_000  # of an archive, which has one or two for each layer
NESTED_LIMIT = 4
ADVICE = "Copy or save the image again."

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
        config = _object(_json(found.config, source, "the config"), source, "the config")
        _check_platform(reference, config)
        diff_ids, environment = _checked(config, len(found.layers), source)
        size = sum(_size(source, name) for name in found.layers)
    digest = f"sha256:{hashlib.sha256(found.config).hexdigest()}"
    return BaseImage(
        # Never the path: it would tell of this machine, and make another digest of the same image elsewhere.
        reference=found.name or digest,
        digest=digest,
        size=size,
        diff_ids=diff_ids,
        environment=environment,
        archive=lambda: _layers(reference, found.layers),
    )


@contextmanager
def _source(reference: str) -> Iterator[Source]:
    match = STORED.fullmatch(reference)
    assert match is not None
    transport, path = match[1], Path(match[2])
    if not (path.is_dir() if transport == "oci" else path.is_file()):
        kind = "folder with an OCI image layout" if transport == "oci" else "archive"
        raise ToolMissing(
            f"The base {reference} is not there: {path} is no {kind}.",
            advice="Name one that is there with --base.",
        )
    if transport == "oci":
        yield Source(str(path), lambda name: _open_below(path, name))
        return
    try:
        with tarfile.open(path, tarinfo=Bounded) as archive:
            members = {}
            for member in itertools.islice(archive, MEMBERS_LIMIT):
                members[posixpath.normpath(member.name)] = (
                    member  # `tar -C layout .` writes ./index.json
                )
            yield Source(str(path), lambda name: _member(archive, members[name]))
    except UNREADABLE as error:
        raise IntegrityError(
            f"{path} cannot be read as an archive: {error}.", advice="Save the image again."
        ) from error


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
        return _find_docker(source, docker)
    index = _object(
        _json(_demand(source, "index.json"), source, "index.json"), source, "index.json"
    )
    entry = _linux(source, index)
    manifest = _blob(source, entry["digest"])
    layers = tuple(_path(_digest(row, source)) for row in _rows(manifest, "layers", source))
    digest = _digest(manifest.get("config"), source)
    config = _demand(source, _path(digest))
    _check_digest(config, digest, source)
    return Found(config, layers, _name(entry))


def _find_docker(source: Source, content: bytes) -> Found:
    entries = _rows({"images": _json(content, source, "manifest.json")}, "images", source)
    told = [entry.get("RepoTags") for entry in entries]
    tags = [
        [tag for tag in row if isinstance(tag, str)] if isinstance(row, list) else []
        for row in told
    ]
    if len(entries) != 1:
        names = ", ".join(tag for each in tags for tag in each or ["<untitled>"])
        raise InvalidSpec(
            f"{source.shown} holds several images ({names}).",
            advice="Save the one that you mean alone.",
        )
    config, layers = entries[0].get("Config"), entries[0].get("Layers")
    if (
        not isinstance(config, str)
        or not isinstance(layers, list)
        or not all(isinstance(name, str) for name in layers)
    ):
        raise _none(source, "manifest.json names no config or no layers")
    return Found(_demand(source, config), tuple(layers), next(iter(tags[0]), None))


def _linux(source: Source, index: dict[str, Any], depth: int = 0) -> dict[str, Any]:
    """The entry for linux/amd64 (or the only one), also where indexes are nested."""
    rows = [
        row
        for row in _rows(index, "manifests", source)
        if row.get("mediaType") in (*MANIFESTS, *LISTS)
    ]
    named = {
        _digest(row, source): row for row in reversed(rows)
    }  # an image that has several names is one
    fitting = [row for row in named.values() if _platform(row) in (None, ("linux", "amd64"))]
    if len(fitting) != 1:
        there = ", ".join("/".join(_platform(row) or ("any",)) for row in rows) or "none"
        raise InvalidSpec(
            f"{source.shown} holds {len(fitting)} images for linux/amd64, not one (platforms: {there}).",
            advice="Copy the one that you mean into a layout of its own.",
        )
    row: dict[str, Any] = fitting[0]
    if row["mediaType"] not in LISTS:
        return row
    if depth == NESTED_LIMIT:
        raise _none(source, "its indexes are nested too deep")
    inner = _linux(source, _blob(source, row["digest"]), depth + 1)
    return {**inner, "annotations": {NAME: _name(inner) or _name(row)}}


def _platform(row: dict[str, Any]) -> tuple[str, str] | None:
    platform = row.get("platform")
    return (
        (str(platform.get("os")), str(platform.get("architecture")))
        if isinstance(platform, dict) and platform
        else None
    )


def _name(entry: dict[str, Any]) -> str | None:
    annotations = entry.get("annotations")
    name = annotations.get(NAME) if isinstance(annotations, dict) else None
    return name if isinstance(name, str) else None


def _checked(
    config: dict[str, Any], layers: int, source: Source
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The diff ids and the environment of a config that fits this many layers."""
    rootfs, run = config.get("rootfs"), config.get("config") or {}
    diff_ids = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
    environment = (run.get("Env") or []) if isinstance(run, dict) else None
    if not isinstance(diff_ids, list) or not all(
        isinstance(one, str) and DIGEST.fullmatch(one) for one in diff_ids
    ):
        raise _none(source, "its config names no layers")
    if len(diff_ids) != layers:
        raise _none(source, f"its config names {len(diff_ids)} layers, its manifest {layers}")
    if not isinstance(environment, list) or not all(isinstance(pair, str) for pair in environment):
        raise _none(source, "its environment is no list of variables")
    return tuple(diff_ids), tuple(environment)


def _blob(source: Source, digest: str) -> dict[str, Any]:
    content = _demand(source, _path(digest))
    _check_digest(content, digest, source)
    return _object(_json(content, source, digest), source, digest)


def _check_digest(content: bytes, digest: str, source: Source) -> None:
    if f"sha256:{hashlib.sha256(content).hexdigest()}" != digest:
        raise IntegrityError(f"{source.shown}: {digest} is not what its name says.", advice=ADVICE)


def _digest(row: Any, source: Source) -> str:
    digest = row.get("digest") if isinstance(row, dict) else None
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        raise _none(source, f"{str(digest)[:80]!r} is no digest")
    return digest


def _rows(document: dict[str, Any], key: str, source: Source) -> list[dict[str, Any]]:
    rows = document.get(key)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise _none(source, f"its {key} are no list of entries")
    return rows


def _object(document: Any, source: Source, what: str) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise _none(source, f"{what} is no JSON object")
    return document


def _none(source: Source, why: str) -> IntegrityError:
    return IntegrityError(f"{source.shown} is not a whole image: {why}.", advice=ADVICE)


def _path(digest: str) -> str:
    algorithm, _, value = digest.partition(":")
    return f"blobs/{algorithm}/{value}"


def _demand(source: Source, name: str) -> bytes:
    content = _read(source, name)
    if content is None:
        raise IntegrityError(
            f"{source.shown} has no {name}: it is not a whole image.", advice=ADVICE
        )
    return content


def _read(source: Source, name: str) -> bytes | None:
    try:
        with source.open(name) as file:
            content = file.read(DOCUMENT_LIMIT + 1)
    except KeyError:
        return None
    if len(content) > DOCUMENT_LIMIT:
        raise _none(source, f"{name} is larger than any such document")
    return content


def _size(source: Source, name: str) -> int:
    try:
        with source.open(name) as file:
            return file.seek(0, 2)
    except KeyError as error:
        raise IntegrityError(f"{source.shown} lacks its layer {name}.", advice=ADVICE) from error


def _json(content: bytes, source: Source, what: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{source.shown}: {what} is not JSON.", advice=ADVICE) from error


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
