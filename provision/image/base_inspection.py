"""What a base must have for an environment to work on it: a shell, and a glibc that is not older than the lock was solved for.

Read out of the layers' archives, without unpacking or running anything.
"""

from __future__ import annotations

import posixpath
import re
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from provision.core.errors import IntegrityError, InvalidSpec
from provision.image.archives import UNREADABLE, Bounded, hidden_by

SHELL = ("bin/sh", "usr/bin/sh")
LIBC = re.compile(r"(?:usr/)?lib(?:64)?(?:/[^/]+-linux-gnu)?/libc(?:\.so\.6|-2\.\d+\.so)")
# glibc's banner, which `libc.so.6` prints when it is run.
BANNER = re.compile(rb"GNU C Library [^\n]*version (\d+\.\d+)")
LIBC_LIMIT = 64 << 20  # glibc is 2 MB; what calls itself so and is larger is not read


@dataclass
class Root:
    """What of interest the layers make together; libc: versions by path."""

    shells: set[str] = field(default_factory=set)
    libc: dict[str, str] = field(default_factory=dict)

    def forget(self, hidden: Callable[[str], bool]) -> None:
        self.shells = {name for name in self.shells if not hidden(name)}
        self.libc = {name: version for name, version in self.libc.items() if not hidden(name)}


def check(reference: str, layers: Sequence[Path], glibc: str) -> None:
    """layers: uncompressed archives from the bottom up. glibc: what the lock needs at least, for example 2.28.

    Raises InvalidSpec where the base will not do, IntegrityError where a layer is no archive.
    """
    root = Root()
    for layer in layers:
        _add(root, layer)
    advice = "Name another base with --base: Debian, Ubuntu and the like, not older than this."
    if not root.libc:
        raise InvalidSpec(
            f"The base {reference} has no glibc, which every build of PyTorch needs (Alpine has musl).",
            advice=advice,
        )
    version = max(root.libc.values(), key=_numbers)
    if _numbers(version) < _numbers(glibc):
        raise InvalidSpec(
            f"The base {reference} has glibc {version}, but the environment was locked for {glibc} or newer.",
            advice=advice,
        )
    if not root.shells:
        raise InvalidSpec(
            f"The base {reference} has no /bin/sh, which commands of packages start with.",
            advice=advice,
        )


def _add(root: Root, layer: Path) -> None:
    try:
        with tarfile.open(layer, "r:", tarinfo=Bounded) as archive:
            for member in archive:
                _take(root, archive, member)
    except UNREADABLE as error:
        raise IntegrityError(
            f"A layer of the base is no archive: {error}.", advice="Load or save the base again."
        ) from error


def _take(root: Root, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    path = posixpath.normpath(member.name).lstrip("/")
    if hidden := hidden_by(path):
        root.forget(hidden)
    elif path in SHELL:
        root.shells.add(path)
    elif LIBC.fullmatch(path) and (member.isreg() or member.islnk()):
        version = _version(archive, member)
        if version:
            root.libc[path] = version


def _version(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str | None:
    """Of a file, or of one that has two names in this layer; of nothing else: extractfile would look for what a link names."""
    try:
        file = archive.extractfile(member) if member.size <= LIBC_LIMIT else None
    except KeyError:  # a second name of a file that is not in this layer
        return None
    match = BANNER.search(file.read(LIBC_LIMIT)) if file else None
    return match[1].decode() if match else None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
