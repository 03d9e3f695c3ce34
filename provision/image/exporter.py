"""An image out of our own folder: as an OCI image layout, or as an archive that engines and HPC runtimes read."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from provision.core.errors import InUse, InvalidSpec, disk_full_raises
from provision.core.file_locks import try_lock
from provision.core.types import Image, Progress
from provision.image import docker_load, layer_cache, oci_layout, tar
from provision.image.base_archive import LISTS

Kind = Literal["docker", "oci", "oci-archive", "docker-archive"]

COMPRESSED: tuple[Kind, ...] = (
    "oci",
    "oci-archive",
)  # whose layers may be; docker's readers do not know every kind
# What lies in a layout: of the specification, of `docker save`, and of ours.
_OF_A_LAYOUT = {
    "blobs",
    "index.json",
    "oci-layout",
    "manifest.json",
    "repositories",
    layer_cache.FILE,
    oci_layout.MARK,
}
_FORM = re.compile(r"(docker)|(oci|oci-archive|docker-archive):(.+)")


@dataclass(frozen=True, kw_only=True)
class Output:
    """Where an image goes beside our own folder: into the engine, or to a path."""

    kind: Kind
    path: Path | None = None

    def __str__(self) -> str:
        return self.kind if self.path is None else f"{self.kind}:{self.path}"


def output(text: str) -> Output:
    """What a user wrote, or InvalidSpec."""
    match = _FORM.fullmatch(text)
    if match is None:
        forms = "docker, oci:DIR, oci-archive:FILE or docker-archive:FILE"
        raise InvalidSpec(f"{text!r} is not a place for an image.", advice=f"It is {forms}.")
    if match[1]:
        return Output(kind="docker")
    return Output(kind=cast("Kind", match[2]), path=Path(match[3]).absolute())


def export(image: Image, to: Output, progress: Progress, names: Sequence[str] = ()) -> None:
    """Write the image to a path; what was there is replaced when the new one is whole. names: in place of its own.

    InUse as by `check_free`. NoSpace where the disk is full.
    """
    check_free(to)
    path = _real(to)
    with disk_full_raises(
        f"The disk of {path.parent} is full: {to} was not written.", advice="Free space there."
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        if to.kind == "oci":
            _copy_layout(image, path, names)
        else:
            tags = names or [image.reference]
            pieces = (
                _oci_archive(image, names)
                if to.kind == "oci-archive"
                else docker_load.archive(image, tags=tags, read=layer_cache.pieces)
            )
            _write(pieces, path, sum(layer.size for layer in image.layers), progress)


def check_free(to: Output) -> None:
    """InUse where something is there that is not replaced: only a file, an empty folder, and a layout of one image are."""
    if to.path is None or not (path := _real(to)).exists():
        return
    if to.kind == "oci" and os.path.ismount(path):
        raise InUse(
            f"{path} is where a file system is mounted, and cannot be replaced.",
            advice="Name a folder in it.",
        )
    problem = (
        _not_replaced(path)
        if to.kind == "oci"
        else ""
        if path.is_file()
        else "is there and is no file"
    )
    if problem:
        raise InUse(f"{path} {problem}.", advice="Name another place.")


def _real(to: Output) -> Path:
    """Where a link leads: it stays one, and what is there is replaced."""
    assert to.path is not None
    return Path(os.path.realpath(to.path))


def _not_replaced(path: Path) -> str:
    """What speaks against replacing a path by a layout, or nothing."""
    if path.is_dir() and not any(path.iterdir()):
        return ""
    if not (path / "oci-layout").is_file():
        return "is there and is no image layout"
    try:
        rows = json.loads((path / "index.json").read_bytes())["manifests"]
        several = len({row["digest"] for row in rows}) > 1 or any(
            row.get("mediaType") in LISTS for row in rows
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return "has an index that cannot be read; it would be replaced whole"
    if several:
        return "is a layout of several images; it would be replaced whole"
    foreign = next(_foreign(path), None)
    return (
        f"holds more than an image layout, {foreign}; it would be replaced whole" if foreign else ""
    )


def _foreign(layout: Path) -> Iterator[str]:
    """What a layout does not consist of, by its path in it."""
    blobs = oci_layout.blobs(layout)
    yield from sorted(item.name for item in layout.iterdir() if item.name not in _OF_A_LAYOUT)
    yield from (f"blobs/{item.name}" for item in _items(blobs.parent) if item != blobs)
    yield from (
        f"blobs/sha256/{item.name}"
        for item in _items(blobs)
        if not re.fullmatch("[0-9a-f]{64}", item.name)
    )


def _items(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _copy_layout(image: Image, to: Path, names: Sequence[str]) -> None:
    """Blobs never change, so where both lie on one file system a second name will do. Damaged ones are never passed on."""
    blobs = _blobs(image)
    if bad := layer_cache.damaged(image.layout, [f"sha256:{blob.name}" for blob in blobs]):
        raise layer_cache.broken(oci_layout.blob(image.layout, bad[0]))
    with oci_layout.building(to) as new:
        for blob in blobs:
            link_or_copy(blob, oci_layout.blobs(new) / blob.name)
        (new / "index.json").write_bytes(oci_layout.index(image.layout, names))
        shutil.copyfile(image.layout / "oci-layout", new / "oci-layout")


def _blobs(image: Image) -> list[Path]:
    """The files that the image consists of: other things may lie in a folder. IntegrityError where one is gone."""
    digests = dict.fromkeys(
        [image.manifest_digest, image.image_id, *(layer.digest for layer in image.layers)]
    )
    blobs = [oci_layout.blob(image.layout, digest) for digest in digests]
    if gone := [blob for blob in blobs if not blob.is_file()]:
        raise layer_cache.broken(gone[0])
    return blobs


def link_or_copy(source: Path, target: Path) -> None:
    """A second name, or a copy that has its name only when it is whole and what the name says."""
    try:
        os.link(source, target)
    except OSError:
        beside = target.with_name(f".{target.name}.copying")
        try:
            with beside.open("wb") as file:
                file.writelines(layer_cache.pieces(source))
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)


def _oci_archive(image: Image, names: Sequence[str]) -> Iterator[bytes]:
    """The layout as one tar, small documents first."""
    yield from docker_load.member("oci-layout", image.layout / "oci-layout")
    index = oci_layout.index(image.layout, names)
    yield tar.header("index.json", kind="file", mode=0o644, mtime=0, size=len(index))
    yield index + tar.padding(len(index))
    for blob in sorted(_blobs(image), key=lambda path: (path.stat().st_size, path.name)):
        yield from docker_load.member(
            blob.relative_to(image.layout).as_posix(), blob, layer_cache.pieces(blob)
        )
    yield tar.END


def _write(pieces: Iterable[bytes], to: Path, size: int, progress: Progress) -> None:
    _sweep(to)
    beside = to.with_name(f".{to.name}.{os.getpid()}.new")
    try:
        with beside.open("wb") as file, progress.meter(f"writing {to.name}", size) as meter:
            try_lock(file.fileno())
            for piece in pieces:
                file.write(piece)
                meter.advance(len(piece))
        beside.replace(to)
    finally:
        beside.unlink(missing_ok=True)


def _sweep(to: Path) -> None:
    """Remove what runs that were killed had written of this file. A run elsewhere on a shared disk holds the lock of its own."""
    for path in to.parent.iterdir():
        match = re.fullmatch(rf"\.{re.escape(to.name)}\.([0-9]{{1,9}})\.new", path.name)
        if match and path.is_file() and not path.is_symlink() and not _is_running(int(match[1])):
            with contextlib.suppress(OSError), path.open("r+b") as file:
                if try_lock(file.fileno()) == "locked":
                    path.unlink()


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return pid != os.getpid()
