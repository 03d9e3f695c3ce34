"""Files of an image as its layers make them together: read out of their archives, without unpacking or running anything."""

from __future__ import annotations

import contextlib
import posixpath
import re
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from provision.core.errors import IntegrityError
from provision.image.archives import UNREADABLE, Bounded, hidden_by

LINKS = 8  # followed, and no further: links may lead in a circle


@dataclass
class Within:
    """Paths are without a leading slash. seen: files that are there but were not read. size: bytes that were read."""

    files: dict[str, bytes] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    size: int = 0

    def get(self, path: str) -> bytes | None:
        """A file that was read, also where it or the folder that it lies in is a link."""
        for _ in range(LINKS):
            if path in self.files:
                return self.files[path]
            link = next(
                (known for known in (path, posixpath.dirname(path)) if known in self.links), None
            )
            if link is None:
                return None
            path = self._target(link) + path[len(link) :]
        return None

    def _target(self, link: str) -> str:
        return posixpath.normpath(
            posixpath.join("/", posixpath.dirname(link), self.links[link])
        ).lstrip("/")

    def forget(self, hidden: Callable[[str], bool]) -> None:
        self.files = {name: content for name, content in self.files.items() if not hidden(name)}
        self.links = {name: target for name, target in self.links.items() if not hidden(name)}
        self.seen = {name for name in self.seen if not hidden(name)}


def within(
    layers: Sequence[Path], wanted: re.Pattern[str], noticed: re.Pattern[str], limit: int
) -> Within:
    """The files and links whose whole path matches `wanted`; of what matches `noticed`, the names.

    layers: uncompressed archives from the bottom up. Raises IntegrityError where one is no archive, or the files have more than
    `limit` bytes together.
    """
    found = Within()
    for layer in layers:
        try:
            with tarfile.open(layer, "r:", tarinfo=Bounded) as archive:
                for member in archive:
                    _take(found, archive, member, wanted, noticed, limit)
                    if found.size > limit:
                        raise IntegrityError(
                            f"The image's package records have more than {limit >> 20} MiB.",
                            advice="Choose another base with --base.",
                        )
        except UNREADABLE as error:
            raise IntegrityError(
                f"A layer of the image is no archive: {error}.", advice="Build the image again."
            ) from error
    return found


def _take(
    found: Within,
    archive: tarfile.TarFile,
    member: tarfile.TarInfo,
    wanted: re.Pattern[str],
    noticed: re.Pattern[str],
    limit: int,
) -> None:
    path = posixpath.normpath(member.name).lstrip("/")
    if hidden := hidden_by(path):
        found.forget(hidden)
    elif noticed.fullmatch(path):
        found.seen.add(path)
    elif wanted.fullmatch(path):
        found.files.pop(path, None)
        found.links.pop(path, None)
        if member.issym():
            found.links[path] = member.linkname
        elif member.isreg() or member.islnk():
            with contextlib.suppress(KeyError):  # a second name of a file that is not in this layer
                file = archive.extractfile(member)
                found.files[path] = file.read(limit + 1) if file else b""
                found.size += len(found.files[path])
