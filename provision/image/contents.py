"""Some files of an image, as its layers make them together: read from the layers' archives, without
unpacking or running anything."""

from __future__ import annotations

import posixpath
import re
import tarfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from provision.core.errors import IntegrityError
from provision.core.tar import UNREADABLE, BoundedTarInfo, hidden_by, open_stream
from provision.image import layers

SIZE_LIMIT = 64 << 20  # of all files; the status file of a complete Debian has 10 MB, glibc 2 MB


@dataclass
class ImageContents:
    """Some files of an image, by paths without a leading slash. noticed: the sizes of files that exist.
    size: bytes that were read."""

    files: dict[str, bytes] = field(default_factory=dict)
    noticed: dict[str, int] = field(default_factory=dict)
    size: int = 0

    def hide(self, is_hidden: Callable[[str], bool]) -> None:
        self.files = {path: file for path, file in self.files.items() if not is_hidden(path)}
        self.noticed = {path: size for path, size in self.noticed.items() if not is_hidden(path)}


def read_files(
    blobs: Sequence[Path], pattern: re.Pattern[str], noticed: re.Pattern[str] | None = None
) -> ImageContents:
    """The files whose whole path matches `pattern`, and the sizes of those that match `noticed`.

    Hard links are followed within their layer, if it is not compressed; symbolic links are not,
    because extractfile would look for their targets. blobs: archives from the bottom up. Raises
    IntegrityError if one is not an archive, or if the files have more than SIZE_LIMIT bytes together.
    """
    contents = ImageContents()
    for blob in blobs:
        try:
            with blob.open("rb") as file, _open_archive(file) as archive:
                for member in archive:
                    path = posixpath.normpath(member.name).lstrip("/")
                    is_hidden = hidden_by(path)
                    if is_hidden:
                        contents.hide(is_hidden)
                        continue
                    if noticed is not None and noticed.fullmatch(path):
                        contents.noticed[path] = member.size
                    if pattern.fullmatch(path):
                        _add_file(contents, archive, member, path)
        except UNREADABLE as error:
            raise IntegrityError(
                f"A layer of the image is not a tar archive: {error}.",
                advice="Load, save or build the image again.",
            ) from error
    return contents


def _open_archive(file: IO[bytes]) -> tarfile.TarFile:
    """The archive of a layer. Only one that is not compressed can be read without its files' content."""
    magic = file.read(4)
    file.seek(0)
    if magic.startswith((layers.GZIP, layers.ZSTD)):
        return open_stream(layers.decompress(file))
    return tarfile.open(fileobj=file, mode="r:", tarinfo=BoundedTarInfo)


def _add_file(
    contents: ImageContents, archive: tarfile.TarFile, member: tarfile.TarInfo, path: str
) -> None:
    contents.files.pop(path, None)
    if not (member.isreg() or member.islnk()):
        return
    with suppress(KeyError, tarfile.StreamError):  # a hard link to a file that is not in this layer
        file = archive.extractfile(member)
        contents.files[path] = file.read(SIZE_LIMIT + 1) if file else b""
        contents.size += len(contents.files[path])
    if contents.size > SIZE_LIMIT:
        raise IntegrityError(
            f"The files of the image to read have more than {SIZE_LIMIT >> 20} MiB.",
            advice="Choose another base with --base.",
        )
